//! The model in a run file: a fresh one by its shape, or a Hugging Face folder.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use firebrick_models::GptConfig;

/// The model, one of [`models`](firebrick_models). The task determines its head.
///
/// | Task | `Gpt` | `Llama` | `Bert` | `T5` |
/// |---|---|---|---|---|
/// | `CausalLm` | yes | yes | | |
/// | `MaskedLm`, `TokenClassification`, `SequenceClassification` | | | yes | |
/// | `Seq2Seq` | | | | yes |
///
/// The vocabulary size comes from the tokenizer, and the number of positions from the longest row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ModelConfig {
    /// A decoder-only transformer with learned positions, with fresh weights.
    Gpt(GptConfig),
    /// A decoder-only transformer with rotated positions and a gated feed-forward layer, with fresh weights.
    Llama(LlamaShape),
    /// An encoder, with fresh weights.
    Bert(BertShape),
    /// An encoder and a decoder, with fresh weights.
    T5(T5Shape),
    /// The weights of a Hugging Face folder, of any family in [`pretrained`](firebrick_models::pretrained). A head that
    /// the folder lacks is initialized.
    Pretrained(PathBuf),
}

/// The shape of a fresh [`BertConfig`](firebrick_models::BertConfig).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BertShape {
    /// Transformer blocks.
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

/// The shape of a fresh [`LlamaConfig`](firebrick_models::LlamaConfig).
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
    #[serde(default = "super::yes")]
    pub tied: bool,
}

/// The shape of a fresh [`T5Config`](firebrick_models::T5Config).
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
    #[serde(default = "super::yes")]
    pub gated: bool,
    /// Whether the head shares the weights of the token embedding. Default: yes.
    #[serde(default = "super::yes")]
    pub tied: bool,
}

impl ModelConfig {
    /// Returns the model's name in a run file.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Gpt(_) => "Gpt",
            Self::Llama(_) => "Llama",
            Self::Bert(_) => "Bert",
            Self::T5(_) => "T5",
            Self::Pretrained(_) => "Pretrained",
        }
    }
}
