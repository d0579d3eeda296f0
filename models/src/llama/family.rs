//! Llama, a decoder with rotated positions, and its relatives.

use crate::{Llama, LlamaConfig};
use firebrick::TrainError;
use firebrick_datasets::TokenBatch;
use firebrick_strategies::SettingError;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::family::{Attention, Family, Narrowing, Sizes, Trainable, Transformer, ids, yes};
use crate::inference::{Answer, Answers, Inference, Question, continued};

/// The shape of a fresh [`LlamaConfig`](crate::LlamaConfig).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LlamaShape {
    /// Transformer blocks.
    pub layers: usize,
    /// Number of attention heads, a divisor of `width`.
    pub heads: usize,
    /// Number of key and value heads, a divisor of `heads`. Default: `heads`.
    #[serde(default)]
    pub key_value_heads: Option<usize>,
    /// Size of the hidden state.
    pub width: usize,
    /// The width inside a feed-forward layer. Default: 8/3 of `width`, rounded up to a multiple of 8.
    #[serde(default)]
    pub inner: Option<usize>,
    /// Dropout probability of attention weights. Default: 0.
    #[serde(default)]
    pub dropout: f64,
    /// Whether the head shares the weights of the token embedding. Default: yes.
    #[serde(default = "yes")]
    pub tied: bool,
}

/// The default width inside a feed-forward layer.
fn inner_of(width: usize) -> usize {
    (width.saturating_mul(8) / 3).next_multiple_of(8)
}

impl Family for LlamaConfig {
    type Shape = LlamaShape;

    const CHANGEABLE: &'static [&'static str] = &["dropout"];

    fn check_shape(shape: &LlamaShape) -> Result<(), SettingError> {
        let LlamaShape { layers, heads, width, inner, dropout, .. } = *shape;
        Transformer { layers, heads, width, inner, default_inner: inner_of(width), dropout }.check()?;
        let shared = shape.key_value_heads.unwrap_or(heads);
        let divides = shared > 0 && heads.is_multiple_of(shared);
        let expected = format!("a divisor of `heads`, which is {heads}");
        SettingError::require(divides, "key_value_heads", expected, shared)?;
        let expected = "an even multiple of `heads`: positions turn pairs of numbers";
        SettingError::require((width / heads).is_multiple_of(2), "width", expected, width)
    }

    fn fresh(shape: &LlamaShape, Sizes { vocabulary, positions, special }: Sizes<'_>) -> Self {
        Self {
            vocab_size: vocabulary,
            max_position_embeddings: positions,
            hidden_size: shape.width,
            intermediate_size: shape.inner.unwrap_or_else(|| inner_of(shape.width)),
            num_hidden_layers: shape.layers,
            num_attention_heads: shape.heads,
            num_key_value_heads: Some(shape.key_value_heads.unwrap_or(shape.heads)),
            attention_dropout: shape.dropout,
            tie_word_embeddings: shape.tied,
            rest: ids(special),
            ..Self::default()
        }
    }

    fn layers(&self) -> usize {
        self.num_hidden_layers
    }

    fn with_layers(mut self, num_hidden_layers: usize) -> Self {
        // Further blocks are like the last one.
        if let Some(Value::Array(types)) = self.rest.get_mut("layer_types")
            && let Some(last) = types.last().cloned()
        {
            types.resize(types.len().max(num_hidden_layers), last);
        }
        Self { num_hidden_layers, ..self }
    }

    fn smallest(self) -> Self {
        // Rotary embeddings rotate pairs of numbers.
        Self {
            vocab_size: 1,
            hidden_size: 2,
            intermediate_size: 1,
            num_attention_heads: 1,
            num_key_value_heads: Some(1),
            head_dim: Some(2),
            // Scalings hold a number for each pair, and rotated shares of larger heads.
            rope_scaling: None,
            rope_parameters: None,
            // A list of blocks may say that none has a window.
            sliding_window: None,
            rest: Map::new(),
            ..self
        }
    }

    fn narrowed(&self, to: Narrowing) -> Option<Self> {
        let heads = [self.num_attention_heads, self.key_value_heads()];
        let ([num_attention_heads, shared], head_dim) = to.heads(heads, self.head_size())?;
        Some(Self {
            hidden_size: to.width(self.hidden_size)?,
            intermediate_size: to.width(self.intermediate_size)?,
            num_attention_heads,
            num_key_value_heads: Some(shared),
            head_dim: Some(head_dim),
            ..self.clone()
        })
    }

    fn attention(&self) -> Vec<Attention> {
        let (size, layers) = (self.head_size(), self.num_hidden_layers);
        let mut attention = Attention::of_itself(layers, self.num_attention_heads * size);
        attention.iter_mut().for_each(|layers| layers.key_width = self.key_value_heads() * size);
        attention
    }

    fn vocabulary(&self) -> usize {
        self.vocab_size
    }

    fn with_vocabulary(self, vocab_size: usize) -> Self {
        Self { vocab_size, ..self }
    }

    fn positions(&self) -> Option<usize> {
        None
    }
}

impl Trainable for Llama {
    const TASK: &'static str = "CausalLm";

    type Batch = TokenBatch;

    fn divides_tokens(_: &LlamaConfig) -> bool {
        true
    }
}

impl Answers for Llama {
    fn answers(&self, questions: &[Question], inference: &Inference) -> Result<Vec<Answer>, TrainError> {
        continued(self, questions, inference)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pretrained::HubConfig;

    #[test]
    fn the_smallest_of_any_relative_passes_its_check() {
        for fields in [
            r#"{"model_type": "qwen3", "head_dim": 6, "layer_types": ["full_attention"]}"#,
            r#"{"model_type": "gemma2", "head_dim": 6, "layer_types": ["full_attention"], "sliding_window": null}"#,
            r#"{"model_type": "gemma3_text", "head_dim": 6, "rope_parameters": {"full_attention": null}}"#,
            r#"{"model_type": "phi3", "hidden_size": 32, "num_attention_heads": 4, "partial_rotary_factor": 0.75,
                "rope_scaling": {"type": "su", "short_factor": [1.0, 2.0, 3.0], "long_factor": [2.0, 3.0, 4.0]}}"#,
            r#"{"model_type": "mistral", "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}"#,
        ] {
            let config: LlamaConfig = serde_json::from_str(fields).unwrap();
            let config = LlamaConfig { num_hidden_layers: 1, ..config };
            config.check().unwrap();
            config.clone().with_layers(3).check().unwrap();
            config.smallest().with_layers(3).check().unwrap();
        }
    }
}
