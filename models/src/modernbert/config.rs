//! `config.json` of ModernBERT.

use burn::nn::Initializer;
use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::heads::Pooling;
use crate::pretrained::{HubConfig, PretrainedError, check_dropouts, check_heads, check_layers, check_sizes};
use crate::{Activation, ClassNames, Linear, Norm};

/// `config.json` of ModernBERT, with transformers' names and defaults.
///
/// ```
/// use firebrick_models::ModernBertConfig;
///
/// let config: ModernBertConfig = serde_json::from_str(r#"{"hidden_size": 1024, "num_attention_heads": 16}"#)?;
/// assert_eq!((config.num_hidden_layers, config.local_attention), (22, 128));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModernBertConfig {
    /// `modernbert`.
    pub model_type: String,
    /// Size of the vocabulary.
    pub vocab_size: usize,
    /// Size of the hidden state.
    pub hidden_size: usize,
    /// The width inside a feed-forward layer.
    pub intermediate_size: usize,
    /// Number of transformer blocks.
    pub num_hidden_layers: usize,
    /// Number of attention heads; must divide `hidden_size` into even numbers.
    pub num_attention_heads: usize,
    /// The activation of a feed-forward layer's gate.
    pub hidden_activation: Activation,
    /// The number of positions in training. The model also accepts longer inputs.
    pub max_position_embeddings: usize,
    /// Standard deviation of the initial weights, before their tails are cut.
    pub initializer_range: f64,
    /// Added to the variance in layer norms.
    pub norm_eps: f64,
    /// Whether layer norms have a bias.
    pub norm_bias: bool,
    /// Whether the linear layers of attention have a bias.
    pub attention_bias: bool,
    /// Dropout of attention weights and of the output of attention.
    pub attention_dropout: f64,
    /// The attention of each block, `full_attention` or `sliding_attention`, as transformers 5 writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layer_types: Option<Vec<LayerType>>,
    /// Every block of this many, from the first on, attends to all tokens, and the others have a window. Used if there are
    /// no `layer_types`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global_attn_every_n_layers: Option<usize>,
    /// The window: in a block with a window, a token attends to the `local_attention / 2` tokens on either side.
    pub local_attention: usize,
    /// The base of the rotary embedding of blocks without a window, as transformers 4 writes it. Default: 160000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global_rope_theta: Option<f64>,
    /// The base in blocks with a window, as transformers 4 writes it. Default: 10000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_rope_theta: Option<f64>,
    /// The scaling of the frequencies of all blocks, as transformers 4 writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<Map<String, Value>>,
    /// Base and scaling for each of the `layer_types`, as transformers 5 writes them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_parameters: Option<RopeParameters>,
    /// Dropout of the embeddings.
    pub embedding_dropout: f64,
    /// Whether the linear layers of a feed-forward layer have a bias.
    pub mlp_bias: bool,
    /// Dropout inside a feed-forward layer.
    pub mlp_dropout: f64,
    /// Whether the output of a masked LM has a bias.
    pub decoder_bias: bool,
    /// The part of a text that a classifier reads.
    pub classifier_pooling: Pooling,
    /// Dropout before a classifier.
    pub classifier_dropout: f64,
    /// Whether the linear layer before a classifier or the output of a masked LM has a bias.
    pub classifier_bias: bool,
    /// The activation after that layer.
    pub classifier_activation: Activation,
    /// The classes of a classifier.
    #[serde(flatten)]
    pub classes: ClassNames,
    /// Must be true for a masked LM.
    pub tie_word_embeddings: bool,
    /// All other fields, unchanged.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// What the tokens of a block attend to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerType {
    /// All tokens.
    FullAttention,
    /// The tokens of a window around them.
    SlidingAttention,
}

/// Base and scaling of the frequencies for each kind of block.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RopeParameters {
    /// In blocks without a window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_attention: Option<Map<String, Value>>,
    /// In blocks with a window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sliding_attention: Option<Map<String, Value>>,
    /// All other fields, unchanged.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

impl Default for ModernBertConfig {
    fn default() -> Self {
        Self {
            model_type: "modernbert".into(),
            vocab_size: 50368,
            hidden_size: 768,
            intermediate_size: 1152,
            num_hidden_layers: 22,
            num_attention_heads: 12,
            hidden_activation: Activation::Gelu,
            max_position_embeddings: 8192,
            initializer_range: 0.02,
            norm_eps: 1e-5,
            norm_bias: false,
            attention_bias: false,
            attention_dropout: 0.0,
            layer_types: None,
            global_attn_every_n_layers: None,
            local_attention: 128,
            global_rope_theta: None,
            local_rope_theta: None,
            rope_scaling: None,
            rope_parameters: None,
            embedding_dropout: 0.0,
            mlp_bias: false,
            mlp_dropout: 0.0,
            decoder_bias: true,
            classifier_pooling: Pooling::Cls,
            classifier_dropout: 0.0,
            classifier_bias: false,
            classifier_activation: Activation::Gelu,
            classes: ClassNames::default(),
            tie_word_embeddings: true,
            rest: Map::new(),
        }
    }
}

impl ModernBertConfig {
    /// Names the classes, in order of their numbers.
    pub fn with_labels<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.classes = self.classes.renamed(names);
        self
    }

    /// Size of a head.
    pub(super) fn head_size(&self) -> usize {
        self.hidden_size / self.num_attention_heads.max(1)
    }

    pub(super) fn normal(&self) -> Initializer {
        Initializer::Normal { mean: 0.0, std: self.initializer_range }
    }

    /// A linear layer that reads the hidden state.
    pub(super) fn linear(&self, to: usize, bias: bool, device: &Device) -> Linear {
        Linear::new(self.hidden_size, to, bias, self.normal(), device)
    }

    /// A linear layer at the end of a residual branch, or of a head: with smaller weights the deeper the model is.
    pub(super) fn ending(&self, from: usize, bias: bool, device: &Device) -> Linear {
        let std = self.initializer_range / (2.0 * self.num_hidden_layers.max(1) as f64).sqrt();
        Linear::new(from, self.hidden_size, bias, Initializer::Normal { mean: 0.0, std }, device)
    }

    pub(super) fn norm(&self, device: &Device) -> Norm {
        Norm::new(self.hidden_size, self.norm_bias, device).with_epsilon(self.norm_eps)
    }
}

impl HubConfig for ModernBertConfig {
    const MODEL_TYPES: &'static [&'static str] = &["modernbert"];

    fn check(&self) -> Result<(), PretrainedError> {
        check_sizes(&[
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("max_position_embeddings", self.max_position_embeddings),
            ("num_labels", self.classes.count()),
        ])?;
        check_layers("num_hidden_layers", self.num_hidden_layers)?;
        check_heads("num_attention_heads", self.num_attention_heads, self.hidden_size)?;
        crate::pretrained::check_epsilon("norm_eps", self.norm_eps)?;
        check_dropouts(&[
            ("attention_dropout", self.attention_dropout),
            ("embedding_dropout", self.embedding_dropout),
            ("mlp_dropout", self.mlp_dropout),
            ("classifier_dropout", self.classifier_dropout),
        ])?;
        if !self.head_size().is_multiple_of(2) {
            let expected = format!("a divisor of {}, the half of `hidden_size`", self.hidden_size / 2);
            return Err(PretrainedError::setting("num_attention_heads", expected, self.num_attention_heads));
        }
        self.places().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::has_defaults_of_class;

    fn config(fields: &str) -> ModernBertConfig {
        serde_json::from_str(fields).unwrap()
    }

    #[test]
    fn absent_fields_have_the_defaults_of_transformers() {
        let meaning = |config: &ModernBertConfig| {
            let plain = ModernBertConfig {
                layer_types: None,
                global_attn_every_n_layers: None,
                global_rope_theta: None,
                local_rope_theta: None,
                rope_scaling: None,
                rope_parameters: None,
                rest: Map::new(),
                ..config.clone()
            };
            config.check().unwrap();
            format!("{plain:?} {:?}", config.places().unwrap())
        };
        has_defaults_of_class("modernbert", &serde_json::json!({}), &[], meaning);
    }

    #[test]
    fn unknown_fields_are_written_back() {
        let read = config(
            r#"{"model_type": "modernbert", "num_labels": 3, "odd": [1], "rope_parameters": {"full_attention":
                {"rope_type": "default", "rope_theta": 5.0}, "odd": 1}}"#,
        );
        let written = serde_json::to_value(&read).unwrap();
        assert_eq!(
            (&written["odd"][0], &written["rope_parameters"]["odd"]),
            (&Value::from(1), &Value::from(1))
        );
        assert_eq!(serde_json::from_value::<ModernBertConfig>(written).unwrap(), read);
        assert_eq!(read.classes.count(), 3);
    }

    #[test]
    fn invalid_settings_are_named() {
        config("{}").check().unwrap();
        for (fields, field, found) in [
            (r#"{"num_attention_heads": 7}"#, "num_attention_heads", "7"),
            (r#"{"hidden_size": 6, "num_attention_heads": 2}"#, "num_attention_heads", "2"),
            (r#"{"intermediate_size": 0}"#, "intermediate_size", "0"),
            (r#"{"num_hidden_layers": 99999999999}"#, "num_hidden_layers", "99999999999"),
            (r#"{"mlp_dropout": 1.5}"#, "mlp_dropout", "1.5"),
            (r#"{"embedding_dropout": -1}"#, "embedding_dropout", "-1"),
            (r#"{"global_attn_every_n_layers": 0}"#, "global_attn_every_n_layers", "0"),
            (r#"{"layer_types": ["full_attention"]}"#, "layer_types", "1"),
            (r#"{"rope_scaling": {"rope_type": "proportional", "factor": 4}}"#, "rope_scaling", "{"),
            (r#"{"rope_scaling": {"type": "linear", "factor": 4}}"#, "rope_scaling", "{"),
            (r#"{"global_rope_theta": 0}"#, "global_rope_theta", "0"),
            (r#"{"rope_theta": 5.0}"#, "rope_theta", "5"),
            (r#"{"rope_parameters": {"rope_type": "default"}}"#, "rope_parameters", "{"),
            (
                r#"{"local_rope_theta": 7, "rope_parameters": {"sliding_attention": {"rope_theta": 8}}}"#,
                "local_rope_theta",
                "7",
            ),
            (
                r#"{"num_hidden_layers": 2, "global_attn_every_n_layers": 2,
                    "layer_types": ["sliding_attention", "full_attention"]}"#,
                "global_attn_every_n_layers",
                "2",
            ),
        ] {
            let error = config(fields).check().unwrap_err().to_string();
            assert!(
                error.contains(&format!("`{field}`")) && error.contains(&format!("found {found}")),
                "{error}"
            );
        }
        for (fields, expected) in [
            (r#"{"classifier_pooling": "max"}"#, "`cls` or `mean`"),
            (r#"{"layer_types": ["windowed"]}"#, "`full_attention` or `sliding_attention`"),
            (r#"{"hidden_activation": "mish"}"#, "gelu_new"),
        ] {
            let error = serde_json::from_str::<ModernBertConfig>(fields).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
