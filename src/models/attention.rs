//! Causal self-attention, and what is masked in it.

use burn::module::Module;
use burn::tensor::{Bool, Device, FloatDType, Tensor, activation};
use firebrick_datasets::TokenBatch;
use firebrick_strategies::{Dropout, Pass, cast, matmul};

use super::Linear;
use super::gpt::{GptConfig, linear, residual_std};

/// `[batch, 1, length - 1, length - 1]`, true where a position would read a later one, another
/// sample, or padding. Padding reads padding: a position that reads nothing has no softmax.
pub(super) fn mask_of(batch: &TokenBatch, device: &Device) -> Tensor<4, Bool> {
    let [rows, length] = batch.shape();
    let read = length - 1;
    let together = match batch.block_mask(device) {
        Some(together) => together,
        None => {
            let shape = [rows, length, length];
            let real = batch.mask(device);
            let reader = real.clone().unsqueeze_dim::<3>(2).expand(shape);
            reader.equal(real.unsqueeze_dim::<3>(1).expand(shape))
        }
    };
    let apart = together.slice([0..rows, 0..read, 0..read]).bool_not().unsqueeze_dim::<4>(1);
    apart.bool_or(future_mask(read, device).expand([rows, 1, read, read]))
}

/// `[1, 1, length, length]`, true where a position would read a later one.
pub(super) fn future_mask(length: usize, device: &Device) -> Tensor<4, Bool> {
    Tensor::<2, Bool>::tril_mask([length, length], 0, device).unsqueeze()
}

/// Causal self-attention with several heads (Vaswani et al., 2017, arXiv:1706.03762).
#[derive(Module, Debug)]
pub(super) struct Attention {
    pub(super) query_key_value: Linear,
    pub(super) output: Linear,
    dropout: Dropout,
    heads: usize,
}

impl Attention {
    pub(super) fn new(config: &GptConfig, device: &Device) -> Self {
        let width = config.width;
        Self {
            query_key_value: linear(config, width, 3 * width, 0.02, device),
            output: linear(config, width, width, residual_std(config), device),
            dropout: Dropout::new(config.dropout),
            heads: config.heads,
        }
    }

    /// `[batch, length, width]` to the same; `masked` is `[1 or batch, 1, length, length]`.
    pub(super) fn forward(&self, x: Tensor<3>, masked: Tensor<4, Bool>, pass: &Pass) -> Tensor<3> {
        let [batch, length, width] = x.dims();
        let size = width / self.heads;
        // [batch, length, 3 * width] -> three of [batch, heads, length, size]
        let joined = self.query_key_value.forward(x);
        let part = |i: usize| -> Tensor<4> {
            let part = joined.clone().narrow(2, i * width, width);
            part.reshape([batch, length, self.heads, size]).swap_dims(1, 2)
        };
        let (query, key, value) = (part(0), part(1), part(2));
        let dtype = FloatDType::from(query.dtype());
        let scores = matmul(query / (size as f64).sqrt(), key.transpose());
        // Softmax in f32, as autocast does: its sum runs over the whole row.
        let scores = cast(scores, FloatDType::F32).mask_fill(masked, f32::NEG_INFINITY);
        let weights = cast(activation::softmax(scores, 3), dtype);
        let mixed = matmul(self.dropout.forward_along(weights, &[2, 3], pass), value);
        let joined = mixed.swap_dims(1, 2).reshape([batch, length, width]);
        self.dropout.forward(self.output.forward(joined), pass)
    }
}
