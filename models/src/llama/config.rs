//! `config.json` of Llama and related decoders.

use burn::nn::Initializer;
use burn::tensor::Device;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::pretrained::{
    Folder, HubConfig, PretrainedError, check_dropouts, check_heads, check_layers, check_sizes,
};
use crate::rope::{Rope, RopeSettings};
use crate::{Activation, Linear, RmsNorm};

/// `config.json` of Llama, Mistral, Qwen2, Qwen3 and Phi-3, with transformers' names and Llama's defaults.
///
/// ```
/// use firebrick_models::LlamaConfig;
///
/// let config: LlamaConfig = serde_json::from_str(r#"{"num_attention_heads": 32, "num_key_value_heads": 8}"#)?;
/// assert_eq!(config.key_value_heads(), 8);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LlamaConfig {
    /// `llama`, `mistral`, `qwen2`, `qwen3` or `phi3`.
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
    /// arXiv:2305.13245); `num_attention_heads` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_key_value_heads: Option<usize>,
    /// Size of a head; `hidden_size / num_attention_heads` if absent, and 128 in Qwen3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_dim: Option<usize>,
    /// The activation of a feed-forward layer's gate.
    pub hidden_act: Activation,
    /// The maximum number of positions in training. The model also accepts longer inputs, except with the scaling
    /// `longrope`.
    pub max_position_embeddings: usize,
    /// Standard deviation of the initial weights.
    pub initializer_range: f64,
    /// Added to the mean square in norms.
    pub rms_norm_eps: f64,
    /// The base of the rotary embedding, as transformers 4 writes it. Default: 10000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_theta: Option<f64>,
    /// The scaling of the frequencies, as transformers 4 writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<Map<String, Value>>,
    /// The base and the scaling, as transformers 5 writes them.
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
    /// The number of tokens that a token of a Mistral, Qwen or Phi-3 attends to, itself included. `Some(None)`, a null
    /// field, means all tokens; `None`, an absent field, means transformers' default: 4096, and all in Phi-3.
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
    /// # Errors
    ///
    /// The scaling is not supported, or lacks a number.
    pub(super) fn rope(&self) -> Result<Rope, PretrainedError> {
        Rope::new(RopeSettings {
            parameters: self.rope_parameters.as_ref(),
            scaling: self.rope_scaling.as_ref(),
            theta: self.rope_theta.unwrap_or(10_000.0),
            size: self.rotated_size()?,
            positions: self.max_position_embeddings,
            original_positions: match self.is_phi() {
                true => self.number("original_max_position_embeddings")?.map(|positions| positions as usize),
                false => None,
            },
        })
    }

    /// The number of key and value heads.
    pub fn key_value_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    pub(super) fn head_size(&self) -> usize {
        match self.head_dim {
            Some(size) => size,
            None if self.model_type == "qwen3" => 128,
            None => self.hidden_size / self.num_attention_heads.max(1),
        }
    }

    fn is_phi(&self) -> bool {
        self.model_type == "phi3"
    }

    /// Whether queries, keys and values are one linear layer, and gate and what it multiplies another.
    pub(super) fn joins(&self) -> bool {
        self.is_phi()
    }

    /// Whether the queries and keys of each head are normalised.
    pub(super) fn norms_heads(&self) -> bool {
        self.model_type == "qwen3"
    }

    /// A field that holds a number and is not a field of this type.
    fn number(&self, name: &'static str) -> Result<Option<f64>, PretrainedError> {
        match self.rest.get(name).filter(|value| !value.is_null()) {
            None => Ok(None),
            Some(value) => match value.as_f64() {
                Some(number) => Ok(Some(number)),
                None => Err(PretrainedError::setting(name, "a number", value)),
            },
        }
    }

    /// How many of a head's numbers are rotated: in a Phi-3, the share `partial_rotary_factor`.
    fn rotated_size(&self) -> Result<usize, PretrainedError> {
        const FIELD: &str = "partial_rotary_factor";
        let head = self.head_size();
        if !self.is_phi() {
            return Ok(head);
        }
        let of_rope =
            self.rope_parameters.as_ref().and_then(|fields| fields.get(FIELD)).and_then(Value::as_f64);
        let share = match of_rope {
            Some(share) => share,
            None => self.number(FIELD)?.unwrap_or(1.0),
        };
        // As transformers rounds it.
        let size = (head as f64 * share) as usize;
        match share > 0.0 && share <= 1.0 && size > 0 && size.is_multiple_of(2) {
            true => Ok(size),
            false => {
                let expected = format!("a share of `head_dim`, which is {head}, that is an even number");
                Err(PretrainedError::setting(FIELD, expected, share))
            }
        }
    }

    /// Rejects the dropouts of a Phi-3 outside of attention.
    fn check_phi(&self) -> Result<(), PretrainedError> {
        for name in ["resid_pdrop", "embd_pdrop"] {
            if let Some(dropout) = self.number(name)?.filter(|dropout| *dropout != 0.0) {
                return Err(PretrainedError::setting(name, "0", dropout));
            }
        }
        for (name, is_set) in [("attention_bias", self.attention_bias), ("mlp_bias", self.mlp_bias)] {
            if is_set {
                return Err(PretrainedError::setting(name, "false: Phi-3 has no bias", is_set));
            }
        }
        Ok(())
    }

    /// Whether queries, keys and values have a bias, and whether the output has one.
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

    /// The number of tokens that each token attends to in a block, itself included; `None` for all.
    ///
    /// # Errors
    ///
    /// `layer_types` or `max_window_layers` holds a value that transformers does not write.
    pub(super) fn window(&self, block: usize) -> Result<Option<usize>, PretrainedError> {
        let window = || self.sliding_window.unwrap_or(Some(4096));
        match &*self.model_type {
            "mistral" => Ok(window()),
            "phi3" => Ok(self.sliding_window.flatten()),
            "qwen2" | "qwen3" if self.use_sliding_window == Some(true) && self.slides(block)? => Ok(window()),
            _ => Ok(None),
        }
    }

    /// Whether a block of a Qwen2 or Qwen3 with `use_sliding_window` has the window.
    fn slides(&self, block: usize) -> Result<bool, PretrainedError> {
        let field = |name| self.rest.get(name).filter(|value| !value.is_null());
        let wrong =
            |name, expected: &str, found: &Value| Err(PretrainedError::setting(name, expected, found));
        if let Some(types) = field("layer_types") {
            return match types.get(block).and_then(Value::as_str) {
                Some("sliding_attention") => Ok(true),
                Some("full_attention") => Ok(false),
                _ => wrong("layer_types", "sliding_attention or full_attention for each layer", types),
            };
        }
        match field("max_window_layers") {
            None => Ok(block >= 28),
            Some(first) => match first.as_u64() {
                Some(first) => Ok(block as u64 >= first),
                None => wrong("max_window_layers", "a number of layers", first),
            },
        }
    }
}

impl HubConfig for LlamaConfig {
    const MODEL_TYPES: &'static [&'static str] = &["llama", "mistral", "qwen2", "qwen3", "phi3"];

    fn check(&self) -> Result<(), PretrainedError> {
        check_sizes(&[
            ("vocab_size", self.vocab_size),
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_attention_heads", self.num_attention_heads),
            ("head_dim", self.head_size()),
        ])?;
        check_layers("num_hidden_layers", self.num_hidden_layers)?;
        if self.head_dim.is_none() && self.model_type != "qwen3" {
            check_heads("num_attention_heads", self.num_attention_heads, self.hidden_size)?;
        }
        check_heads("num_key_value_heads", self.key_value_heads(), self.num_attention_heads)?;
        check_dropouts(&[("attention_dropout", self.attention_dropout)])?;
        if !self.head_size().is_multiple_of(2) {
            return Err(PretrainedError::setting("head_dim", "an even number", self.head_size()));
        }
        if self.is_phi() {
            self.check_phi()?;
        }
        for block in 0..self.num_hidden_layers {
            if self.window(block)? == Some(0) {
                return Err(PretrainedError::setting("sliding_window", "null, or at least 1", 0));
            }
        }
        self.rope().map(drop)
    }

    /// A folder with a separate head is loaded with it whatever the field says, as in transformers.
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
    fn invalid_settings_are_named() {
        for (fields, field) in [
            (r#"{"num_key_value_heads": 5}"#, "num_key_value_heads"),
            (r#"{"num_attention_heads": 3}"#, "num_attention_heads"),
            (r#"{"num_attention_heads": 0}"#, "num_attention_heads"),
            (r#"{"head_dim": 5}"#, "head_dim"),
            (r#"{"model_type": "mistral", "sliding_window": 0}"#, "sliding_window"),
            (
                r#"{"model_type": "qwen2", "use_sliding_window": true, "layer_types": ["full_attention"]}"#,
                "layer_types",
            ),
            (r#"{"attention_dropout": -0.1}"#, "attention_dropout"),
            (r#"{"model_type": "phi3", "resid_pdrop": 0.1}"#, "resid_pdrop"),
            (r#"{"model_type": "phi3", "embd_pdrop": 0.1}"#, "embd_pdrop"),
            (r#"{"model_type": "phi3", "attention_bias": true}"#, "attention_bias"),
            (r#"{"model_type": "phi3", "partial_rotary_factor": 0.01}"#, "partial_rotary_factor"),
            (r#"{"model_type": "phi3", "partial_rotary_factor": "all"}"#, "partial_rotary_factor"),
            (
                r#"{"model_type": "phi3", "rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}}"#,
                "rope_scaling",
            ),
        ] {
            let config: LlamaConfig = serde_json::from_str(fields).unwrap();
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(&format!("`{field}`")), "{error}");
        }
        for fields in [
            r#"{"num_attention_heads": 3, "head_dim": 6}"#,
            r#"{"model_type": "mistral", "sliding_window": 1024}"#,
            r#"{"model_type": "qwen2", "sliding_window": 0, "use_sliding_window": false}"#,
            r#"{"sliding_window": 0}"#,
            r#"{"model_type": "qwen3", "num_attention_heads": 3}"#,
            r#"{"model_type": "phi3", "partial_rotary_factor": 0.5, "resid_pdrop": 0.0}"#,
        ] {
            assert!(serde_json::from_str::<LlamaConfig>(fields).unwrap().check().is_ok(), "{fields}");
        }
    }

    /// The windows of transformers' `configuration_mistral.py` and `configuration_qwen2.py`.
    #[test]
    fn windows_by_family() {
        let windows = |fields: &str| {
            let config: LlamaConfig = serde_json::from_str(fields).unwrap();
            let written = serde_json::to_value(&config).unwrap();
            assert_eq!(
                serde_json::from_value::<LlamaConfig>(written).unwrap(),
                config,
                "it is written as read"
            );
            [0, 1, 27, 28].map(|block| config.window(block).unwrap())
        };
        assert_eq!(windows(r#"{"sliding_window": 9}"#), [None; 4]);
        assert_eq!(windows(r#"{"model_type": "mistral"}"#), [Some(4096); 4]);
        assert_eq!(windows(r#"{"model_type": "mistral", "sliding_window": null}"#), [None; 4]);
        assert_eq!(windows(r#"{"model_type": "mistral", "sliding_window": 9}"#), [Some(9); 4]);
        assert_eq!(windows(r#"{"model_type": "qwen2", "sliding_window": 9}"#), [None; 4]);
        assert_eq!(windows(r#"{"model_type": "phi3"}"#), [None; 4]);
        assert_eq!(windows(r#"{"model_type": "phi3", "sliding_window": 9}"#), [Some(9); 4]);
        let used = r#""model_type": "qwen2", "use_sliding_window": true"#;
        assert_eq!(windows(&format!("{{{used}}}")), [None, None, None, Some(4096)]);
        let some = format!(r#"{{{used}, "sliding_window": 9, "max_window_layers": 1}}"#);
        assert_eq!(windows(&some), [None, Some(9), Some(9), Some(9)]);
        let types: Vec<_> =
            (0..29).map(|at| if at == 1 { "sliding_attention" } else { "full_attention" }).collect();
        let some = format!(r#"{{{used}, "sliding_window": 9, "layer_types": {types:?}}}"#);
        assert_eq!(windows(&some), [None, Some(9), None, None]);
    }

    #[test]
    fn biases_by_family() {
        let biases = |fields| serde_json::from_str::<LlamaConfig>(fields).unwrap().attention_biases();
        assert_eq!(biases("{}"), (false, false));
        assert_eq!(biases(r#"{"attention_bias": true}"#), (true, true));
        assert_eq!(biases(r#"{"model_type": "qwen2"}"#), (true, false));
    }
}
