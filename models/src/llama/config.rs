//! `config.json` of Llama and related decoders.

use burn::nn::Initializer;
use burn::tensor::Device;
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

use super::gemma::{Gemma, rope_of};
use super::kind::{LlamaLine, number, slides};
use crate::pretrained::{
    Folder, HubConfig, PretrainedError, check_dropouts, check_heads, check_layers, check_sizes,
};
use crate::rope::{Base, Rope, RopeSettings};
use crate::{Activation, Linear, RmsNorm};

/// `config.json` of Llama, Mistral, Qwen2, Qwen3, Phi-3, Gemma 2 and the text model of Gemma 3, with transformers' names.
///
/// Absent fields have the defaults of the class of the `model_type` in transformers, as in [`Default`] for a Llama.
///
/// ```
/// use firebrick_models::LlamaConfig;
///
/// let config: LlamaConfig = serde_json::from_str(r#"{"num_attention_heads": 32, "num_key_value_heads": 8}"#)?;
/// assert_eq!(config.key_value_heads(), 8);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, remote = "Self")]
pub struct LlamaConfig {
    /// `llama`, `mistral`, `qwen2`, `qwen3`, `phi3`, `gemma2` or `gemma3_text`.
    pub model_type: String,
    /// Size of the vocabulary.
    pub vocab_size: usize,
    /// Size of the hidden state.
    pub hidden_size: usize,
    /// The width inside a feed-forward layer.
    pub intermediate_size: usize,
    /// Number of transformer blocks.
    pub num_hidden_layers: usize,
    /// Number of attention heads.
    pub num_attention_heads: usize,
    /// Number of key and value heads, each shared by several attention heads (Ainslie et al., 2023,
    /// arXiv:2305.13245); `num_attention_heads` if null. If absent, that too in Llama and Phi-3, 8 in Mistral, 32 in Qwen,
    /// and 4 in Gemma.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_key_value_heads: Option<usize>,
    /// Size of a head; if absent, `hidden_size / num_attention_heads`, 128 in Qwen3, and 256 in Gemma.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<usize>,
    /// The activation of a feed-forward layer's gate, which Gemma calls `hidden_activation`.
    pub hidden_act: Activation,
    /// The maximum number of positions in training. The model also accepts longer inputs.
    pub max_position_embeddings: usize,
    /// Standard deviation of the initial weights.
    pub initializer_range: f64,
    /// Added to the mean square in norms.
    pub rms_norm_eps: f64,
    /// The base of the rotary embedding, as transformers 4 writes it. Default: 10000. In Gemma 3, that of blocks without
    /// a window; 1000000 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_theta: Option<f64>,
    /// The scaling of the frequencies, as transformers 4 writes it. Unless it is empty, it takes the place of
    /// `rope_parameters`, as in transformers 5; in Gemma 3, it is added to those of blocks without a window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<Map<String, Value>>,
    /// The base and the scaling, as transformers 5 writes them; in Gemma 3, those of each type of block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_parameters: Option<Map<String, Value>>,
    /// Whether the linear layers of attention have a bias. In Qwen2, queries, keys and values always have one, and
    /// the output never does. Phi-3 has none.
    pub attention_bias: bool,
    /// Whether the linear layers of a feed-forward layer have a bias.
    pub mlp_bias: bool,
    /// Dropout of attention weights.
    pub attention_dropout: f64,
    /// Whether the output head shares the token embedding's weights.
    pub tie_word_embeddings: bool,
    /// The number of tokens that a token of a Mistral, Qwen, Phi-3 or Gemma attends to, itself included. `Some(None)`, a
    /// null field, means all tokens; `None`, an absent field, means transformers' default: 4096, and all in Phi-3. A
    /// Gemma uses it in the blocks that `layer_types` names; or else a Gemma 2 in every other block from the first on, and
    /// a Gemma 3 in all but each block whose number `sliding_window_pattern` divides.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub sliding_window: Option<Option<usize>>,
    /// Whether a Qwen2 or Qwen3 uses its window: in the blocks that `layer_types` names, or else from block
    /// `max_window_layers` on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_sliding_window: Option<bool>,
    /// All other fields, unchanged.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// Deserializes a field that is present, even if it is null.
fn present<'de, D: Deserializer<'de>>(field: D) -> Result<Option<Option<usize>>, D::Error> {
    Option::deserialize(field).map(Some)
}

impl Default for LlamaConfig {
    fn default() -> Self {
        Self {
            model_type: "llama".into(),
            vocab_size: 32000,
            hidden_size: 4096,
            intermediate_size: 11008,
            num_hidden_layers: 32,
            num_attention_heads: 32,
            num_key_value_heads: None,
            head_dim: None,
            hidden_act: Activation::Silu,
            max_position_embeddings: 2048,
            initializer_range: 0.02,
            rms_norm_eps: 1e-6,
            rope_theta: None,
            rope_scaling: None,
            rope_parameters: None,
            attention_bias: false,
            mlp_bias: false,
            attention_dropout: 0.0,
            tie_word_embeddings: false,
            sliding_window: None,
            use_sliding_window: None,
            rest: Map::new(),
        }
    }
}

impl LlamaConfig {
    /// The rotation of all blocks, or of those without a window.
    ///
    /// # Errors
    ///
    /// The fields contradict each other, the scaling is not supported, or a number is missing.
    pub(super) fn rope(&self) -> Result<Rope, PretrainedError> {
        let parameters = self.rope_parameters.as_ref();
        let by_blocks = self.kind().has_two_ropes();
        let (parameters, default) = match by_blocks {
            true => (rope_of(parameters, "full_attention")?, 1_000_000.0),
            false => (parameters, 10_000.0),
        };
        let original_positions = match by_blocks {
            true => None,
            false => self.number("original_max_position_embeddings")?.map(|positions| positions as usize),
        };
        Rope::new(RopeSettings {
            parameters,
            scaling: self.rope_scaling.as_ref(),
            base: Base { field: "rope_theta", value: self.rope_theta, default },
            head_size: self.head_size(),
            share: self.number("partial_rotary_factor")?,
            positions: self.max_position_embeddings,
            original_positions,
            by_blocks,
            is_phi: self.kind() == LlamaLine::Phi3,
        })
    }

    /// The rotation of blocks with a window, if it is another one.
    ///
    /// # Errors
    ///
    /// Those of [`rope`](Self::rope).
    pub(super) fn sliding_rope(&self) -> Result<Option<Rope>, PretrainedError> {
        if !self.kind().has_two_ropes() {
            return Ok(None);
        }
        const BASE: &str = "rope_local_base_freq";
        let rope = Rope::new(RopeSettings {
            parameters: rope_of(self.rope_parameters.as_ref(), "sliding_attention")?,
            scaling: None,
            base: Base { field: BASE, value: self.number(BASE)?, default: 10_000.0 },
            head_size: self.head_size(),
            share: None,
            positions: self.max_position_embeddings,
            original_positions: None,
            by_blocks: true,
            is_phi: false,
        });
        rope.map(Some)
    }

    /// The number of key and value heads.
    pub fn key_value_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    pub(super) fn head_size(&self) -> usize {
        let own = self.head_dim.or(self.kind().head_size());
        own.unwrap_or(self.hidden_size / self.num_attention_heads.max(1))
    }

    pub(super) fn kind(&self) -> LlamaLine {
        LlamaLine::of(&self.model_type)
    }

    /// The settings of a Gemma, if it is one.
    ///
    /// # Errors
    ///
    /// A setting is invalid.
    pub(super) fn gemma(&self) -> Result<Option<Gemma>, PretrainedError> {
        self.kind().is_gemma().then(|| Gemma::read(self.kind(), &self.rest)).transpose()
    }

    /// A field that holds a number and is not a field of this type.
    fn number(&self, name: &'static str) -> Result<Option<f64>, PretrainedError> {
        number(self.kind(), &self.rest, name)
    }

    /// Rejects the dropouts of a Phi-3 outside of attention.
    fn check_phi(&self) -> Result<(), PretrainedError> {
        for name in ["resid_pdrop", "embd_pdrop"] {
            if let Some(dropout) = self.number(name)?.filter(|dropout| *dropout != 0.0) {
                return Err(PretrainedError::setting(name, "0", dropout));
            }
        }
        if self.attention_bias {
            return Err(PretrainedError::setting("attention_bias", "false: Phi-3 has no bias", true));
        }
        Ok(())
    }

    /// Whether queries, keys and values have a bias, and whether the output has one.
    pub(super) fn attention_biases(&self) -> (bool, bool) {
        let qwen = self.kind() == LlamaLine::Qwen2;
        (self.attention_bias || qwen, self.attention_bias && !qwen)
    }

    pub(super) fn normal(&self) -> Initializer {
        Initializer::Normal { mean: 0.0, std: self.initializer_range }
    }

    pub(super) fn linear(&self, from: usize, to: usize, bias: bool, device: &Device) -> Linear {
        Linear::new(from, to, bias, self.normal(), device)
    }

    /// A norm of the hidden state.
    pub(super) fn norm(&self, device: &Device) -> RmsNorm {
        self.norm_of(self.hidden_size, device)
    }

    pub(super) fn norm_of(&self, width: usize, device: &Device) -> RmsNorm {
        let new = if self.kind().is_gemma() { RmsNorm::zero_centered } else { RmsNorm::new };
        new(width, self.rms_norm_eps, device)
    }

    /// The number of tokens that each token attends to in a block, itself included; `None` for all.
    ///
    /// # Errors
    ///
    /// `layer_types` or the like holds a value that transformers does not write, or a Gemma has no window.
    pub(super) fn window(&self, block: usize) -> Result<Option<usize>, PretrainedError> {
        let window = self.sliding_window.unwrap_or(Some(4096));
        let kind = self.kind();
        match kind {
            LlamaLine::Llama => Ok(None),
            LlamaLine::Mistral => Ok(window),
            LlamaLine::Phi3 => Ok(self.sliding_window.flatten()),
            LlamaLine::Qwen2 | LlamaLine::Qwen3 if self.use_sliding_window != Some(true) => Ok(None),
            _ if !slides(kind, &self.rest, block)? => Ok(None),
            LlamaLine::Gemma2 | LlamaLine::Gemma3 if window.is_none() => {
                Err(PretrainedError::setting("sliding_window", "at least 1", Value::Null))
            }
            LlamaLine::Qwen2 | LlamaLine::Qwen3 | LlamaLine::Gemma2 | LlamaLine::Gemma3 => Ok(window),
        }
    }
}

impl HubConfig for LlamaConfig {
    const MODEL_TYPES: &'static [&'static str] = LlamaLine::MODEL_TYPES;

    fn check(&self) -> Result<(), PretrainedError> {
        check_sizes(&[
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_attention_heads", self.num_attention_heads),
            ("head_dim", self.head_size()),
        ])?;
        check_layers("num_hidden_layers", self.num_hidden_layers)?;
        if self.head_dim.or(self.kind().head_size()).is_none() || self.kind().is_gemma() {
            check_heads("num_attention_heads", self.num_attention_heads, self.hidden_size)?;
        }
        check_heads("num_key_value_heads", self.key_value_heads(), self.num_attention_heads)?;
        crate::pretrained::check_epsilon("rms_norm_eps", self.rms_norm_eps)?;
        check_dropouts(&[("attention_dropout", self.attention_dropout)])?;
        if !self.head_size().is_multiple_of(2) {
            return Err(PretrainedError::setting("head_dim", "an even number", self.head_size()));
        }
        if self.kind() == LlamaLine::Phi3 {
            self.check_phi()?;
        }
        if self.mlp_bias && (self.kind() == LlamaLine::Phi3 || self.kind().is_gemma()) {
            return Err(PretrainedError::setting("mlp_bias", "false: the model has no such bias", true));
        }
        self.gemma()?;
        for block in 0..self.num_hidden_layers {
            if self.window(block)? == Some(0) {
                return Err(PretrainedError::setting("sliding_window", "null, or at least 1", 0));
            }
        }
        self.sliding_rope()?;
        self.rope().map(drop)
    }

    /// A folder with a separate head is loaded with it whatever the field says, as in transformers.
    fn settle(&mut self, folder: &Folder) -> Result<(), PretrainedError> {
        let tokens = ["model.embed_tokens.weight", "embed_tokens.weight"];
        self.tie_word_embeddings &= !folder.differ(&["lm_head.weight"], &tokens)?;
        Ok(())
    }
}

impl<'de> Deserialize<'de> for LlamaConfig {
    fn deserialize<D: Deserializer<'de>>(fields: D) -> Result<Self, D::Error> {
        let fields = LlamaLine::read(Map::deserialize(fields)?);
        Self::deserialize(Value::Object(fields)).map_err(D::Error::custom)
    }
}

impl Serialize for LlamaConfig {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let fields = Self::serialize(self, serde_json::value::Serializer).map_err(S::Error::custom)?;
        match fields {
            Value::Object(fields) => self.kind().written(fields).serialize(to),
            other => other.serialize(to),
        }
    }
}

#[cfg(test)]
#[path = "config_tests.rs"]
mod tests;
