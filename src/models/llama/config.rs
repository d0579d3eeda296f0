//! `config.json` of Llama and decoders like it.

use burn::nn::Initializer;
use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::rope::Rope;
use crate::models::pretrained::{
    Folder, HubConfig, PretrainedError, check_dropouts, check_heads, check_layers, check_sizes,
};
use crate::models::{Activation, Linear, RmsNorm};

/// `config.json` of Llama, Mistral and Qwen2, with transformers' names and Llama's defaults.
///
/// ```
/// use firebrick::models::LlamaConfig;
///
/// let config: LlamaConfig = serde_json::from_str(r#"{"num_attention_heads": 32, "num_key_value_heads": 8}"#)?;
/// assert_eq!(config.key_value_heads(), 8);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LlamaConfig {
    /// `llama`, `mistral` or `qwen2`.
    pub model_type: String,
    /// Tokens of the vocabulary.
    pub vocab_size: usize,
    /// Size of the hidden state.
    pub hidden_size: usize,
    /// The width inside a feed-forward layer.
    pub intermediate_size: usize,
    /// Transformer blocks.
    pub num_hidden_layers: usize,
    /// Attention heads.
    pub num_attention_heads: usize,
    /// Heads of keys and values, which several attention heads share (Ainslie et al., 2023, arXiv:2305.13245);
    /// as many as attention heads where it is not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_key_value_heads: Option<usize>,
    /// Size of a head; an even share of `hidden_size` where it is not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<usize>,
    /// Of a feed-forward layer's gate.
    pub hidden_act: Activation,
    /// The most positions that it was trained on. It reads more if it is given more.
    pub max_position_embeddings: usize,
    /// Deviation of fresh weights.
    pub initializer_range: f64,
    /// Added to mean squares.
    pub rms_norm_eps: f64,
    /// The base of the rotation, as transformers 4 wrote it. Default: 10000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_theta: Option<f64>,
    /// How frequencies are scaled, as transformers 4 wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<Map<String, Value>>,
    /// Both, as transformers 5 writes them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_parameters: Option<Map<String, Value>>,
    /// Whether the linear layers of attention have a bias. A Qwen2's have, but the last.
    pub attention_bias: bool,
    /// Whether those of a feed-forward layer have one.
    pub mlp_bias: bool,
    /// Dropout of attention weights.
    pub attention_dropout: f64,
    /// Whether the head is the token embedding itself.
    pub tie_word_embeddings: bool,
    /// Must not be below `max_position_embeddings`, where it is in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sliding_window: Option<usize>,
    /// Whether a Qwen2 uses its window.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub use_sliding_window: Option<bool>,
    /// All other fields, as they were read.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
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
    /// Heads of keys and values.
    pub fn key_value_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    pub(super) fn head_size(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads.max(1))
    }

    /// Whether queries, keys and values have a bias, and whether the output has.
    pub(super) fn attention_biases(&self) -> (bool, bool) {
        let qwen = self.model_type == "qwen2";
        (self.attention_bias || qwen, self.attention_bias && !qwen)
    }

    pub(super) fn normal(&self) -> Initializer {
        Initializer::Normal { mean: 0.0, std: self.initializer_range }
    }

    pub(super) fn linear(&self, from: usize, to: usize, bias: bool, device: &Device) -> Linear {
        Linear::new(from, to, bias, self.normal(), device)
    }

    pub(super) fn norm(&self, device: &Device) -> RmsNorm {
        RmsNorm::new(self.hidden_size, self.rms_norm_eps, device)
    }

    fn has_window(&self) -> bool {
        match &*self.model_type {
            "mistral" => true,
            "qwen2" => self.use_sliding_window == Some(true),
            _ => false,
        }
    }
}

impl HubConfig for LlamaConfig {
    const MODEL_TYPES: &'static [&'static str] = &["llama", "mistral", "qwen2"];

    fn check(&self) -> Result<(), PretrainedError> {
        check_sizes(&[
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_attention_heads", self.num_attention_heads),
            ("head_dim", self.head_size()),
        ])?;
        check_layers("num_hidden_layers", self.num_hidden_layers)?;
        if self.head_dim.is_none() {
            check_heads("num_attention_heads", self.num_attention_heads, self.hidden_size)?;
        }
        check_heads("num_key_value_heads", self.key_value_heads(), self.num_attention_heads)?;
        check_dropouts(&[("attention_dropout", self.attention_dropout)])?;
        if !self.head_size().is_multiple_of(2) {
            return Err(PretrainedError::setting("head_dim", "an even number", self.head_size()));
        }
        if let Some(window) = self.sliding_window.filter(|_| self.has_window())
            && window < self.max_position_embeddings
        {
            let least = self.max_position_embeddings;
            let expected = format!("null, or at least max_position_embeddings, which is {least}");
            return Err(PretrainedError::setting("sliding_window", expected, window));
        }
        Rope::new(self).map(|_| ())
    }

    /// A head of its own is read as one, whatever the field says, as transformers does.
    fn settle(&mut self, folder: &Folder) -> Result<(), PretrainedError> {
        let tokens = ["model.embed_tokens.weight", "embed_tokens.weight"];
        self.tie_word_embeddings &= !folder.differ(&["lm_head.weight"], &tokens)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_is_named() {
        for (fields, field) in [
            (r#"{"num_key_value_heads": 5}"#, "num_key_value_heads"),
            (r#"{"num_attention_heads": 3}"#, "num_attention_heads"),
            (r#"{"num_attention_heads": 0}"#, "num_attention_heads"),
            (r#"{"head_dim": 5}"#, "head_dim"),
            (r#"{"model_type": "mistral", "sliding_window": 1024}"#, "sliding_window"),
            (r#"{"model_type": "qwen2", "sliding_window": 9, "use_sliding_window": true}"#, "sliding_window"),
            (r#"{"attention_dropout": -0.1}"#, "attention_dropout"),
        ] {
            let config: LlamaConfig = serde_json::from_str(fields).unwrap();
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(&format!("`{field}`")), "{error}");
        }
        for fields in [
            r#"{"num_attention_heads": 3, "head_dim": 6}"#,
            r#"{"model_type": "mistral", "sliding_window": 4096}"#,
            r#"{"model_type": "qwen2", "sliding_window": 9, "use_sliding_window": false}"#,
            r#"{"sliding_window": 9}"#,
        ] {
            assert!(serde_json::from_str::<LlamaConfig>(fields).unwrap().check().is_ok(), "{fields}");
        }
    }

    #[test]
    fn biases_by_family() {
        let biases = |fields| serde_json::from_str::<LlamaConfig>(fields).unwrap().attention_biases();
        assert_eq!(biases("{}"), (false, false));
        assert_eq!(biases(r#"{"attention_bias": true}"#), (true, true));
        assert_eq!(biases(r#"{"model_type": "qwen2"}"#), (true, false));
    }
}
