//! The model in a run file: a fresh one by its shape, or a Hugging Face folder.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::models::GptConfig;

/// The model, one of [`models`](crate::models). Which head it has is the task's matter.
///
/// | Task | `Gpt` | `Llama` | `Bert` | `T5` |
/// |---|---|---|---|---|
/// | `CausalLm` | yes | yes | | |
/// | `MaskedLm`, `TokenClassification`, `SequenceClassification` | | | yes | |
/// | `Seq2Seq` | | | | yes |
///
/// The vocabulary is the tokenizer's, and the positions are those of the longest row.
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
    /// The weights of a Hugging Face folder, of any family of [`pretrained`](crate::models::pretrained). A head that
    /// the folder lacks starts anew.
    Pretrained(PathBuf),
}

/// The shape of a fresh [`BertConfig`](crate::models::BertConfig).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BertShape {
    /// Transformer blocks.
    pub layers: usize,
    /// Attention heads; they share `width` evenly.
    pub heads: usize,
    /// Size of the hidden state.
    pub width: usize,
    /// The width inside a feed-forward layer. Default: 4 times `width`.
    #[serde(default)]
    pub inner: Option<usize>,
    /// Share of activations and of attention weights that is dropped while training. Default: 0.
    #[serde(default)]
    pub dropout: f64,
}

/// The shape of a fresh [`LlamaConfig`](crate::models::LlamaConfig).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LlamaShape {
    /// Transformer blocks.
    pub layers: usize,
    /// Attention heads; they share `width` evenly.
    pub heads: usize,
    /// Heads of keys and values, a divisor of `heads`. Default: as many as `heads`.
    #[serde(default)]
    pub key_value_heads: Option<usize>,
    /// Size of the hidden state.
    pub width: usize,
    /// The width inside a feed-forward layer. Default: 8/3 of `width`, rounded up to a multiple of 8.
    #[serde(default)]
    pub inner: Option<usize>,
    /// Share of attention weights that is dropped while training. Default: 0.
    #[serde(default)]
    pub dropout: f64,
    /// Whether the head is the token embedding itself. Default: yes.
    #[serde(default = "super::yes")]
    pub tied: bool,
}

/// The shape of a fresh [`T5Config`](crate::models::T5Config).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct T5Shape {
    /// Transformer blocks of the encoder, and as many of the decoder.
    pub layers: usize,
    /// Attention heads; they share `width` evenly.
    pub heads: usize,
    /// Size of the hidden state.
    pub width: usize,
    /// The width inside a feed-forward layer. Default: 4 times `width`.
    #[serde(default)]
    pub inner: Option<usize>,
    /// Share of activations and of attention weights that is dropped while training. Default: 0.
    #[serde(default)]
    pub dropout: f64,
    /// Whether the feed-forward layer has a gate, as that of T5 1.1. Default: yes.
    #[serde(default = "super::yes")]
    pub gated: bool,
    /// Whether the head is the token embedding itself. Default: yes.
    #[serde(default = "super::yes")]
    pub tied: bool,
}

impl ModelConfig {
    /// What it is called in a run file.
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
