//! Tokens and their positions, as the encoder and the decoder read them.

use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig};
use burn::tensor::{Device, Int, Tensor};
use firebrick_kernels::cast;
use firebrick_strategies::{Dropout, Pass};

use super::BartConfig;
use crate::Norm;
use crate::embedded::embedded;

/// Number of rows of the table before the row of the first position. Nothing reads them.
pub(super) const UNREAD: usize = 2;

/// The embeddings of positions, with the norm of their sum with those of tokens.
#[derive(Module, Debug)]
pub(super) struct Embeddings {
    /// `[positions + 2, width]`.
    positions: Embedding,
    norm: Norm,
    dropout: Dropout,
}

impl Embeddings {
    pub fn new(config: &BartConfig, device: &Device) -> Self {
        let positions = EmbeddingConfig::new(config.max_position_embeddings + UNREAD, config.d_model);
        Self {
            positions: positions.with_initializer(config.normal()).init(device),
            norm: Norm::new(config.d_model, true, device),
            dropout: Dropout::new(config.dropout),
        }
    }

    /// The number of positions.
    pub fn count(&self) -> usize {
        self.positions.weight.dims()[0] - UNREAD
    }

    /// Adds the embeddings of `places`, `[batch, length]`, to those of tokens, `[batch, length, width]`, in the dtype of
    /// the pass.
    pub fn forward(&self, tokens: Tensor<3>, places: Tensor<2, Int>, pass: &Pass) -> Tensor<3> {
        let dtype = pass.dtype();
        let positions = embedded(&self.positions, places.add_scalar(UNREAD as i64));
        let x = self.norm.forward(cast(tokens, dtype) + cast(positions, dtype));
        self.dropout.forward(x, pass)
    }
}
