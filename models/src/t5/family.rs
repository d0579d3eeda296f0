//! T5, an encoder and a decoder.

use crate::T5Config;
use firebrick_strategies::SettingError;
use serde::{Deserialize, Serialize};

use crate::family::{Attention, Family, Narrowing, Sizes, Transformer, ids, yes};

/// The shape of a fresh [`T5Config`](crate::T5Config).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct T5Shape {
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
    /// Whether the feed-forward layer is gated, as in T5 1.1. Default: yes.
    #[serde(default = "yes")]
    pub gated: bool,
    /// Whether the head shares the weights of the token embedding. Default: yes.
    #[serde(default = "yes")]
    pub tied: bool,
}

/// The default width inside a feed-forward layer.
fn inner_of(width: usize) -> usize {
    width.saturating_mul(4)
}

impl Family for T5Config {
    type Shape = T5Shape;

    const CHANGEABLE: &'static [&'static str] = &["dropout"];

    fn check_shape(shape: &T5Shape) -> Result<(), SettingError> {
        let T5Shape { layers, heads, width, inner, dropout, .. } = *shape;
        Transformer { layers, heads, width, inner, default_inner: inner_of(width), dropout }.check()
    }

    fn fresh(shape: &T5Shape, Sizes { vocabulary, special, .. }: Sizes<'_>) -> Self {
        let mut rest = ids(special);
        rest.insert("decoder_start_token_id".into(), special.pad.into());
        Self {
            vocab_size: vocabulary,
            d_model: shape.width,
            d_kv: shape.width / shape.heads.max(1),
            d_ff: shape.inner.unwrap_or(inner_of(shape.width)),
            num_layers: shape.layers,
            num_heads: shape.heads,
            dropout_rate: shape.dropout,
            feed_forward_proj: if shape.gated { "gated-gelu" } else { "relu" }.into(),
            tie_word_embeddings: shape.tied,
            rest,
            ..Self::default()
        }
    }

    fn layers(&self) -> usize {
        self.num_layers
    }

    fn with_layers(self, layers: usize) -> Self {
        Self { num_layers: layers, num_decoder_layers: Some(layers), ..self }
    }

    fn smallest(self) -> Self {
        Self { vocab_size: 1, d_model: 1, d_kv: 1, d_ff: 1, num_heads: 1, ..self }
    }

    fn narrowed(&self, to: Narrowing) -> Option<Self> {
        let ([num_heads, _], d_kv) = to.heads([self.num_heads; 2], self.d_kv)?;
        Some(Self {
            d_model: to.width(self.d_model)?,
            d_kv,
            d_ff: to.width(self.d_ff)?,
            num_heads,
            ..self.clone()
        })
    }

    fn attention(&self) -> Vec<Attention> {
        let (encoder, width) = (self.num_layers, self.num_heads * self.d_kv);
        let decoder = self.num_decoder_layers.unwrap_or(encoder);
        let attention = |layers, of_source, over_source| Attention {
            layers,
            width,
            key_width: width,
            of_source,
            over_source,
        };
        vec![
            attention(encoder, true, true),
            attention(decoder, false, false),
            attention(decoder, false, true),
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
        None
    }

    fn start(&self) -> Option<u32> {
        self.rest.get("decoder_start_token_id")?.as_u64()?.try_into().ok()
    }

    fn starting_from(mut self, start: u32) -> Self {
        self.rest.insert("decoder_start_token_id".into(), start.into());
        self
    }
}
