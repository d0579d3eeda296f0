//! BART, an encoder and a decoder.

use firebrick_strategies::SettingError;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::BartConfig;
use crate::family::{Attention, Family, Narrowing, Sizes, Transformer, ids};

/// The shape of a fresh [`BartConfig`](crate::BartConfig).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BartShape {
    /// Number of transformer blocks of the encoder, and also of the decoder.
    pub layers: usize,
    /// Number of attention heads, a divisor of `width`.
    pub heads: usize,
    /// Size of the hidden state.
    pub width: usize,
    /// The width inside a feed-forward layer. Default: 4 times `width`.
    #[serde(default)]
    pub inner: Option<usize>,
    /// Dropout probability of activations and attention weights. Default: 0.
    #[serde(default)]
    pub dropout: f64,
}

/// The default width inside a feed-forward layer.
fn inner_of(width: usize) -> usize {
    width.saturating_mul(4)
}

impl Family for BartConfig {
    type Shape = BartShape;

    const CHANGEABLE: &'static [&'static str] = &["dropout"];

    fn check_shape(shape: &BartShape) -> Result<(), SettingError> {
        let BartShape { layers, heads, width, inner, dropout } = *shape;
        Transformer { layers, heads, width, inner, default_inner: inner_of(width), dropout }.check()
    }

    fn fresh(shape: &BartShape, Sizes { vocabulary, positions, special }: Sizes<'_>) -> Self {
        let mut rest = ids(special);
        // Otherwise transformers ends the longest texts with the token of the published models.
        rest.insert("forced_eos_token_id".into(), Value::Null);
        let inner = shape.inner.unwrap_or(inner_of(shape.width));
        Self {
            vocab_size: vocabulary,
            max_position_embeddings: positions,
            d_model: shape.width,
            encoder_layers: shape.layers,
            encoder_ffn_dim: inner,
            encoder_attention_heads: shape.heads,
            decoder_layers: shape.layers,
            decoder_ffn_dim: inner,
            decoder_attention_heads: shape.heads,
            dropout: shape.dropout,
            attention_dropout: shape.dropout,
            activation_dropout: shape.dropout,
            decoder_start_token_id: special.pad.unwrap_or(0),
            rest,
            ..Self::default()
        }
    }

    fn layers(&self) -> usize {
        self.encoder_layers
    }

    fn with_layers(self, layers: usize) -> Self {
        Self { encoder_layers: layers, decoder_layers: layers, ..self }
    }

    fn smallest(self) -> Self {
        Self {
            vocab_size: 1,
            max_position_embeddings: 1,
            d_model: 1,
            encoder_ffn_dim: 1,
            encoder_attention_heads: 1,
            decoder_ffn_dim: 1,
            decoder_attention_heads: 1,
            ..self
        }
    }

    fn narrowed(&self, to: Narrowing) -> Option<Self> {
        let heads = |heads: usize| Some(to.heads([heads; 2], self.d_model / heads)?.0[0]);
        Some(Self {
            d_model: to.width(self.d_model)?,
            encoder_ffn_dim: to.width(self.encoder_ffn_dim)?,
            encoder_attention_heads: heads(self.encoder_attention_heads)?,
            decoder_ffn_dim: to.width(self.decoder_ffn_dim)?,
            decoder_attention_heads: heads(self.decoder_attention_heads)?,
            ..self.clone()
        })
    }

    fn attention(&self) -> Vec<Attention> {
        let attention = |layers, of_source, over_source| Attention {
            layers,
            width: self.d_model,
            key_width: self.d_model,
            of_source,
            over_source,
        };
        vec![
            attention(self.encoder_layers, true, true),
            attention(self.decoder_layers, false, false),
            attention(self.decoder_layers, false, true),
        ]
    }

    fn reads_source(&self, path: &str) -> bool {
        let asked = [".source.key.", ".source.value."];
        path.starts_with("encoder.") || asked.iter().any(|part| path.contains(part))
    }

    fn vocabulary(&self) -> usize {
        self.vocab_size
    }

    fn with_vocabulary(self, vocab_size: usize) -> Self {
        Self { vocab_size, ..self }
    }

    fn positions(&self) -> Option<usize> {
        Some(self.max_position_embeddings)
    }

    fn start(&self) -> Option<u32> {
        Some(self.decoder_start_token_id)
    }

    fn starting_from(self, start: u32) -> Self {
        Self { decoder_start_token_id: start, ..self }
    }
}
