//! GPT-2, a decoder with learned positions: its folder in Hugging Face's format, and its entry in run files.

use burn::tensor::Device;
use firebrick::TrainError;
use firebrick_datasets::TokenBatch;
use firebrick_strategies::SettingError;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::gpt_shape::Shape;
use super::pretrained::{
    Folder, HubConfig, KeyMap, Part, Pretrained, PretrainedError, Row, check_dropouts, check_heads,
    check_layers, check_sizes, one_spelling,
};
use super::{Activation, Gpt, GptConfig};
use crate::family::{Attention, Family, Narrowing, Sizes, Trainable, Transformer, ids};
use crate::inference::{Answer, Answers, Inference, Question, continued};

/// `config.json` of GPT-2, with transformers' names and defaults.
///
/// ```
/// use burn::tensor::Device;
/// use firebrick_models::{Gpt, Gpt2Config};
/// use firebrick_models::pretrained::{Folder, save};
///
/// let config = Gpt2Config { vocab_size: 50, n_positions: 8, n_embd: 16, n_layer: 1, n_head: 2, ..Default::default() };
/// let gpt = config.init(&Device::flex());
///
/// let folder = tempfile::tempdir()?;
/// save(&gpt, &config, folder.path())?;
/// let folder = Folder::open(folder.path())?;
/// let loaded = folder.load::<Gpt>(&folder.config::<Gpt2Config>()?, &Device::flex())?;
/// assert!(loaded.fresh.is_empty() && loaded.unread.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, remote = "Self")]
pub struct Gpt2Config {
    /// `gpt2`.
    pub model_type: String,
    /// Size of the vocabulary.
    pub vocab_size: usize,
    /// The maximum number of positions.
    pub n_positions: usize,
    /// Size of the hidden state.
    pub n_embd: usize,
    /// Number of transformer blocks.
    pub n_layer: usize,
    /// Number of attention heads; must divide `n_embd`.
    pub n_head: usize,
    /// The width inside a feed-forward layer; 4 times `n_embd` if absent.
    pub n_inner: Option<usize>,
    /// The activation of a feed-forward layer.
    pub activation_function: Activation,
    /// Dropout at the end of each residual branch.
    pub resid_pdrop: f64,
    /// Dropout of the embeddings.
    pub embd_pdrop: f64,
    /// Dropout of attention weights.
    pub attn_pdrop: f64,
    /// Added to the variance in layer norms.
    pub layer_norm_epsilon: f64,
    /// Whether the output head shares the token embedding's weights.
    pub tie_word_embeddings: bool,
    /// Must be true.
    pub scale_attn_weights: bool,
    /// Must be false.
    pub scale_attn_by_inverse_layer_idx: bool,
    /// Must be false.
    pub add_cross_attention: bool,
    /// Whether linear layers and norms have a bias. transformers does not know a GPT-2 without biases: it loads such
    /// a folder with biases of 0, which gives the same results.
    #[serde(skip_serializing_if = "is_true")]
    pub bias: bool,
    /// All other fields, unchanged.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

impl Default for Gpt2Config {
    fn default() -> Self {
        Self {
            model_type: "gpt2".into(),
            vocab_size: 50257,
            n_positions: 1024,
            n_embd: 768,
            n_layer: 12,
            n_head: 12,
            n_inner: None,
            activation_function: Activation::GeluNew,
            resid_pdrop: 0.1,
            embd_pdrop: 0.1,
            attn_pdrop: 0.1,
            layer_norm_epsilon: 1e-5,
            tie_word_embeddings: true,
            scale_attn_weights: true,
            scale_attn_by_inverse_layer_idx: false,
            add_cross_attention: false,
            bias: true,
            rest: Map::new(),
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde requires this signature")]
fn is_true(value: &bool) -> bool {
    *value
}

impl Gpt2Config {
    /// The configuration of a [`GptConfig`] for `vocabulary` tokens and at most `context` positions.
    pub fn of_shape(shape: &GptConfig, vocabulary: usize, context: usize) -> Self {
        let &GptConfig { layers, heads, width, dropout, bias, tied } = shape;
        Self {
            vocab_size: vocabulary,
            n_positions: context,
            n_embd: width,
            n_layer: layers,
            n_head: heads,
            activation_function: Activation::Gelu,
            resid_pdrop: dropout,
            embd_pdrop: dropout,
            attn_pdrop: dropout,
            tie_word_embeddings: tied,
            bias,
            ..Self::default()
        }
    }

    /// Creates a model with new weights, drawn when they are first read.
    ///
    /// # Panics
    ///
    /// If [`check`](HubConfig::check) would fail.
    pub fn init(&self, device: &Device) -> Gpt {
        assert_eq!(self.n_embd % self.n_head, 0, "n_head must divide n_embd");
        let shape = Shape {
            layers: self.n_layer,
            heads: self.n_head,
            width: self.n_embd,
            inner: self.n_inner.unwrap_or(4 * self.n_embd),
            bias: self.bias,
            tied: self.tie_word_embeddings,
            embedding_dropout: self.embd_pdrop,
            attention_dropout: self.attn_pdrop,
            residual_dropout: self.resid_pdrop,
            activation: self.activation_function,
            epsilon: self.layer_norm_epsilon,
        };
        shape.gpt(self.vocab_size, self.n_positions, device)
    }
}

/// Further names of fields in transformers.
const NAMES: [(&str, &str); 4] = [
    ("hidden_size", "n_embd"),
    ("max_position_embeddings", "n_positions"),
    ("num_attention_heads", "n_head"),
    ("num_hidden_layers", "n_layer"),
];

impl<'de> Deserialize<'de> for Gpt2Config {
    fn deserialize<D: Deserializer<'de>>(fields: D) -> Result<Self, D::Error> {
        let mut fields = Map::deserialize(fields)?;
        one_spelling(&mut fields, &NAMES).map_err(D::Error::custom)?;
        Self::deserialize(Value::Object(fields)).map_err(D::Error::custom)
    }
}

impl Serialize for Gpt2Config {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, to)
    }
}

impl HubConfig for Gpt2Config {
    const MODEL_TYPES: &'static [&'static str] = &["gpt2"];

    fn check(&self) -> Result<(), PretrainedError> {
        check_sizes(&[
            ("vocab_size", self.vocab_size),
            ("n_positions", self.n_positions),
            ("n_embd", self.n_embd),
            ("n_inner", self.n_inner.unwrap_or(1)),
        ])?;
        check_layers("n_layer", self.n_layer)?;
        check_heads("n_head", self.n_head, self.n_embd)?;
        crate::pretrained::check_epsilon("layer_norm_epsilon", self.layer_norm_epsilon)?;
        check_dropouts(&[
            ("resid_pdrop", self.resid_pdrop),
            ("embd_pdrop", self.embd_pdrop),
            ("attn_pdrop", self.attn_pdrop),
        ])?;
        for (field, expected, found) in [
            ("scale_attn_weights", true, self.scale_attn_weights),
            ("scale_attn_by_inverse_layer_idx", false, self.scale_attn_by_inverse_layer_idx),
            ("add_cross_attention", false, self.add_cross_attention),
        ] {
            if found != expected {
                return Err(PretrainedError::setting(field, expected.to_string(), found));
            }
        }
        Ok(())
    }

    /// A folder with a separate head is loaded with it whatever the field says, as in transformers.
    fn settle(&mut self, folder: &Folder) -> Result<(), PretrainedError> {
        let tokens = ["transformer.wte.weight", "wte.weight"];
        self.tie_word_embeddings &= !folder.differ(&["lm_head.weight"], &tokens)?;
        Ok(())
    }
}

const EMBEDDINGS: &[Row] = &[
    (Part::Embedding, "wte", "tokens"),
    (Part::Embedding, "wpe", "positions"),
    (Part::Norm, "ln_f", "norm"),
];
const BLOCK: &[Row] = &[
    (Part::Norm, "h.#.ln_1", "blocks.#.attention_norm"),
    (Part::Conv1d, "h.#.attn.c_attn", "blocks.#.attention.query_key_value"),
    (Part::Conv1d, "h.#.attn.c_proj", "blocks.#.attention.output"),
    (Part::Norm, "h.#.ln_2", "blocks.#.feed_forward_norm"),
    (Part::Conv1d, "h.#.mlp.c_fc", "blocks.#.widen"),
    (Part::Conv1d, "h.#.mlp.c_proj", "blocks.#.narrow"),
];
const HEAD: &[Row] = &[(Part::Linear, "lm_head", "head")];

impl Pretrained for Gpt {
    type Config = Gpt2Config;

    fn architecture(_: &Gpt2Config) -> &'static str {
        "GPT2LMHeadModel"
    }

    fn init(config: &Gpt2Config, device: &Device) -> Self {
        config.init(device)
    }

    fn keys(config: &Gpt2Config) -> KeyMap {
        let map = KeyMap::new("transformer.").body(EMBEDDINGS).layers(config.n_layer, BLOCK);
        // Causal masks in early files.
        let map = map.ignored(&["h.#.attn.bias", "h.#.attn.masked_bias"]);
        match config.tie_word_embeddings {
            true => map.alias("lm_head.weight", "transformer.wte.weight"),
            false => map.head(HEAD),
        }
    }
}

impl Family for Gpt2Config {
    type Shape = GptConfig;

    const CHANGEABLE: &'static [&'static str] = &["dropout"];

    fn check_shape(shape: &GptConfig) -> Result<(), SettingError> {
        let GptConfig { layers, heads, width, dropout, .. } = *shape;
        Transformer { layers, heads, width, inner: None, default_inner: width.saturating_mul(4), dropout }
            .check()
    }

    fn fresh(shape: &GptConfig, Sizes { vocabulary, positions, special }: Sizes<'_>) -> Self {
        Self { rest: ids(special), ..Self::of_shape(shape, vocabulary, positions) }
    }

    fn layers(&self) -> usize {
        self.n_layer
    }

    fn with_layers(self, n_layer: usize) -> Self {
        Self { n_layer, ..self }
    }

    fn smallest(self) -> Self {
        Self { vocab_size: 1, n_positions: 1, n_embd: 1, n_head: 1, n_inner: Some(1), ..self }
    }

    fn narrowed(&self, to: Narrowing) -> Option<Self> {
        let ([n_head, _], _) = to.heads([self.n_head; 2], self.n_embd / self.n_head)?;
        let n_inner = self.n_inner.map(|inner| to.width(inner).ok_or(())).transpose().ok()?;
        Some(Self { n_embd: to.width(self.n_embd)?, n_head, n_inner, ..self.clone() })
    }

    fn attention(&self) -> Vec<Attention> {
        Attention::of_itself(self.n_layer, self.n_embd)
    }

    fn vocabulary(&self) -> usize {
        self.vocab_size
    }

    fn with_vocabulary(self, vocab_size: usize) -> Self {
        Self { vocab_size, ..self }
    }

    fn positions(&self) -> Option<usize> {
        Some(self.n_positions)
    }
}

impl Trainable for Gpt {
    const TASK: &'static str = "CausalLm";

    type Batch = TokenBatch;

    fn divides_tokens(_: &Gpt2Config) -> bool {
        true
    }
}

impl Answers for Gpt {
    fn answers(&self, questions: &[Question], inference: &Inference) -> Result<Vec<Answer>, TrainError> {
        continued(self, questions, inference)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::has_defaults_of_class;

    #[test]
    fn absent_fields_have_the_defaults_of_transformers() {
        let meaning = |config: &Gpt2Config| {
            config.check().unwrap();
            format!("{:?}", Gpt2Config { rest: Map::new(), ..config.clone() })
        };
        has_defaults_of_class("gpt2", &serde_json::json!({}), &[], meaning);
    }
}
