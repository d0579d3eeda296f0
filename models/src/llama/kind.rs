//! What distinguishes the models of the family, and the numbers of `config.json` that only some have.

use serde_json::{Map, Value, json};

use crate::pretrained::{PretrainedError, with_defaults};

/// A line of models that share details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LlamaLine {
    Llama,
    Mistral,
    Qwen2,
    Qwen3,
    Phi3,
    Gemma2,
    Gemma3,
}

/// The name of Gemma's activation, which other models call [`ACTIVATION`].
const OF_GEMMA: &str = "hidden_activation";
const ACTIVATION: &str = "hidden_act";

impl LlamaLine {
    /// The values of `model_type`.
    pub const MODEL_TYPES: &'static [&'static str] =
        &["llama", "mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text"];

    pub fn of(model_type: &str) -> Self {
        match model_type {
            "mistral" => Self::Mistral,
            "qwen2" => Self::Qwen2,
            "qwen3" => Self::Qwen3,
            "phi3" => Self::Phi3,
            "gemma2" => Self::Gemma2,
            "gemma3_text" => Self::Gemma3,
            _ => Self::Llama,
        }
    }

    /// The name of the class in transformers.
    pub fn architecture(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Phi3 => "Phi3ForCausalLM",
            Self::Gemma2 => "Gemma2ForCausalLM",
            Self::Gemma3 => "Gemma3ForCausalLM",
        }
    }

    /// Whether it is a Gemma: embeddings are scaled, norms multiply by 1 plus their weight, and a norm also stands behind
    /// attention and behind a feed-forward layer.
    pub fn is_gemma(self) -> bool {
        matches!(self, Self::Gemma2 | Self::Gemma3)
    }

    /// Whether queries, keys and values are one linear layer, and gate and what it multiplies another.
    pub fn joins(self) -> bool {
        self == Self::Phi3
    }

    /// Whether the queries and keys of each head are normalised.
    pub fn norms_heads(self) -> bool {
        matches!(self, Self::Qwen3 | Self::Gemma3)
    }

    /// Whether blocks with a window rotate positions by other angles.
    pub fn has_two_ropes(self) -> bool {
        self == Self::Gemma3
    }

    /// The size of a head if `config.json` does not say it; `None` if it follows from the width.
    pub fn head_size(self) -> Option<usize> {
        match self {
            Self::Qwen3 => Some(128),
            Self::Gemma2 | Self::Gemma3 => Some(256),
            _ => None,
        }
    }

    /// The defaults of numbers that not all models have; `None` if there is none.
    pub fn default_of(self, field: &str) -> Option<f64> {
        match (self, field) {
            (Self::Gemma2 | Self::Gemma3, "query_pre_attn_scalar") => Some(256.0),
            (Self::Gemma2, "attn_logit_softcapping") => Some(50.0),
            (Self::Gemma2, "final_logit_softcapping") => Some(30.0),
            (Self::Gemma3, "sliding_window_pattern") => Some(6.0),
            (Self::Phi3, "original_max_position_embeddings") => Some(4096.0),
            _ => None,
        }
    }

    /// The defaults of fields that all models have, where they differ from Llama's.
    fn defaults(self) -> Vec<(&'static str, Value)> {
        let (vocabulary, positions) = match self {
            Self::Llama => return Vec::new(),
            Self::Mistral => {
                return vec![
                    ("intermediate_size", json!(14_336)),
                    ("num_key_value_heads", json!(8)),
                    ("max_position_embeddings", json!(131_072)),
                ];
            }
            Self::Qwen2 | Self::Qwen3 => {
                return vec![
                    ("vocab_size", json!(151_936)),
                    ("intermediate_size", json!(22_016)),
                    ("num_key_value_heads", json!(32)),
                    ("max_position_embeddings", json!(32_768)),
                ];
            }
            Self::Phi3 => {
                return vec![
                    ("vocab_size", json!(32_064)),
                    ("hidden_size", json!(3072)),
                    ("intermediate_size", json!(8192)),
                    ("max_position_embeddings", json!(4096)),
                    ("rms_norm_eps", json!(1e-5)),
                ];
            }
            Self::Gemma2 => (256_000, 8192),
            Self::Gemma3 => (262_208, 131_072),
        };
        vec![
            ("vocab_size", json!(vocabulary)),
            ("hidden_size", json!(2304)),
            ("intermediate_size", json!(9216)),
            ("num_hidden_layers", json!(26)),
            ("num_attention_heads", json!(8)),
            ("num_key_value_heads", json!(4)),
            (OF_GEMMA, json!("gelu_pytorch_tanh")),
            ("max_position_embeddings", json!(positions)),
            ("tie_word_embeddings", json!(true)),
        ]
    }

    /// Returns the fields of `config.json` under Llama's names, with the defaults that differ from Llama's.
    pub fn read(fields: Map<String, Value>) -> Map<String, Value> {
        let kind = Self::of(fields.get("model_type").and_then(Value::as_str).unwrap_or_default());
        let mut fields = with_defaults(fields, |model_type| Self::of(model_type).defaults());
        if kind.is_gemma()
            && let Some(activation) = fields.get(OF_GEMMA).cloned()
        {
            fields.insert(ACTIVATION.into(), activation);
        }
        fields
    }

    /// Returns the fields under their names in `config.json`.
    pub fn written(self, mut fields: Map<String, Value>) -> Map<String, Value> {
        if self.is_gemma()
            && let Some(activation) = fields.remove(ACTIVATION)
        {
            fields.entry(OF_GEMMA).or_insert(activation);
        }
        fields
    }
}

/// Returns a number of a model. `None` if it is null, or if it is absent and has no default.
///
/// # Errors
///
/// The field holds something else.
pub(super) fn number(
    kind: LlamaLine,
    fields: &Map<String, Value>,
    name: &'static str,
) -> Result<Option<f64>, PretrainedError> {
    match fields.get(name) {
        None => Ok(kind.default_of(name)),
        Some(Value::Null) => Ok(None),
        Some(value) => match value.as_f64() {
            Some(number) => Ok(Some(number)),
            None => Err(PretrainedError::setting(name, "a number", value)),
        },
    }
}

/// Returns whether a block has the window: as `layer_types` says, or else by the rule of the model.
///
/// # Errors
///
/// A field of `config.json` holds a value that transformers does not write.
pub(super) fn slides(
    kind: LlamaLine,
    fields: &Map<String, Value>,
    block: usize,
) -> Result<bool, PretrainedError> {
    let field = |name| fields.get(name).filter(|value| !value.is_null());
    let wrong = |name, expected: &str, found: &Value| Err(PretrainedError::setting(name, expected, found));
    if let Some(types) = field("layer_types") {
        return match types.get(block).and_then(Value::as_str) {
            Some("sliding_attention") => Ok(true),
            Some("full_attention") => Ok(false),
            _ => wrong("layer_types", "sliding_attention or full_attention for each layer", types),
        };
    }
    if kind == LlamaLine::Gemma2 {
        return Ok(block.is_multiple_of(2));
    }
    if kind == LlamaLine::Gemma3 {
        // Each block with this number does not.
        const PATTERN: &str = "sliding_window_pattern";
        return match number(kind, fields, PATTERN)? {
            Some(every) if every >= 1.0 && every.fract() == 0.0 => {
                Ok(!(block + 1).is_multiple_of(every as usize))
            }
            every => Err(PretrainedError::setting(PATTERN, "a whole number above 0", Value::from(every))),
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
