//! Scaled dot-product attention, its masks, and the causal self-attention of GPT-2.

use burn::module::Module;
use burn::tensor::{Bool, Device, FloatDType, Tensor, TensorData, activation};
use firebrick_datasets::{Inputs, TokenBatch};
use firebrick_kernels::{cast, matmul};
use firebrick_strategies::{Dropout, Pass};

use super::Linear;
use super::gpt_shape::Shape;
use super::key_value::{KeyValue, behind};

/// Computes `softmax(query · keyᵀ + bias) · value` (Vaswani et al., 2017, arXiv:1706.03762), shape
/// `[batch, heads, length, size]`. The query must already be scaled.
///
/// - `key` and `value` are `[batch, heads, read, size]`.
/// - `masked` is true where a position must not read another; it broadcasts to `[batch, heads, length, read]`.
/// - `bias` is added to the scores in f32 and broadcasts like `masked`.
pub(super) fn attend(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    masked: Tensor<4, Bool>,
    bias: Option<Tensor<4>>,
    dropout: &Dropout,
    pass: &Pass,
) -> Tensor<4> {
    let dtype = FloatDType::from(query.dtype());
    // Softmax in f32, as autocast does: its sum runs over the whole row.
    let scores = cast(matmul(query, key.transpose()), FloatDType::F32);
    let scores = match bias {
        Some(bias) => scores + cast(bias, FloatDType::F32),
        None => scores,
    };
    let scores = scores.mask_fill(masked, f32::NEG_INFINITY);
    let weights = cast(activation::softmax(scores, 3), dtype);
    matmul(dropout.forward_along(weights, &[2, 3], pass), value)
}

/// `[batch, length, heads * size]` to `[batch, heads, length, size]`.
pub(super) fn split_heads(x: Tensor<3>, heads: usize) -> Tensor<4> {
    let [batch, length, width] = x.dims();
    x.reshape([batch, length, heads, width / heads]).swap_dims(1, 2)
}

/// `[batch, heads, length, size]` to `[batch, length, heads * size]`.
pub(super) fn join_heads(x: Tensor<4>) -> Tensor<3> {
    let [batch, heads, length, size] = x.dims();
    x.swap_dims(1, 2).reshape([batch, length, heads * size])
}

/// The causal mask of a batch, `[batch, 1, length - 1, length - 1]`: true where a position must not read a later one,
/// another sample, or padding. Padding may read padding, because softmax is undefined for a position that reads
/// nothing.
pub(super) fn mask_of(batch: &TokenBatch, device: &Device) -> Tensor<4, Bool> {
    let [rows, length] = batch.shape();
    let read = length - 1;
    let together = batch.block_mask(device).unwrap_or_else(|| alike(batch.mask(device)));
    let apart = together.slice([0..rows, 0..read, 0..read]).bool_not().unsqueeze_dim::<4>(1);
    apart.bool_or(future_mask(read, device).expand([rows, 1, read, read]))
}

/// The causal mask for real positions `[batch, length]`, `[batch, 1, length, length]`: true where a position must not
/// read a later one, or a real position padding. Padding may read padding.
pub(super) fn causal_mask(real: Tensor<2, Bool>) -> Tensor<4, Bool> {
    let ([rows, length], device) = (real.dims(), real.device());
    let apart = alike(real).bool_not().unsqueeze_dim::<4>(1);
    apart.bool_or(future_mask(length, &device).expand([rows, 1, length, length]))
}

/// `[batch, length, length]`, true if both positions are real or both are padding.
fn alike(real: Tensor<2, Bool>) -> Tensor<3, Bool> {
    let [rows, length] = real.dims();
    let shape = [rows, length, length];
    let reader = real.clone().unsqueeze_dim::<3>(2).expand(shape);
    reader.equal(real.unsqueeze_dim::<3>(1).expand(shape))
}

/// `[1, 1, length, length]`, true where a position would read a later one.
pub(super) fn future_mask(length: usize, device: &Device) -> Tensor<4, Bool> {
    Tensor::<2, Bool>::tril_mask([length, length], 0, device).unsqueeze()
}

/// `[batch, 1, 1, length]`, true for padding, which no position of an encoder reads. A row that is all padding reads
/// all of it, because softmax is undefined for a position that reads nothing.
pub(super) fn padding_mask(inputs: &Inputs, device: &Device) -> Tensor<4, Bool> {
    let [rows, length] = inputs.shape();
    let row = |row: &[bool]| -> Vec<bool> {
        let some = row.contains(&true);
        row.iter().map(|real| some && !real).collect()
    };
    let masked: Vec<bool> = inputs.host_mask().chunks(length.max(1)).flat_map(row).collect();
    Tensor::from_data(TensorData::new(masked, [rows, 1, 1, length]), device)
}

/// The column of each row's first real token, or 0 if the row has none.
pub(super) fn starts_of(real: &[bool], length: usize) -> Vec<usize> {
    let rows = real.chunks(length.max(1));
    rows.map(|row| row.iter().position(|&real| real).unwrap_or(0)).collect()
}

/// Multi-head causal self-attention.
#[derive(Module, Debug)]
pub(super) struct Attention {
    pub(super) query_key_value: Linear,
    pub(super) output: Linear,
    weight_dropout: Dropout,
    dropout: Dropout,
    heads: usize,
}

impl Attention {
    pub(super) fn new(shape: &Shape, device: &Device) -> Self {
        let width = shape.width;
        Self {
            query_key_value: shape.linear(width, 3 * width, 0.02, device),
            output: shape.linear(width, width, shape.residual_std(), device),
            weight_dropout: Dropout::new(shape.attention_dropout),
            dropout: Dropout::new(shape.residual_dropout),
            heads: shape.heads,
        }
    }

    /// `[batch, length, width]` to the same shape, continuing after the keys and values in `past`. Also returns the
    /// keys and values of both; `masked` is `[1 or batch, 1, length, past + length]`.
    pub(super) fn read_on(
        &self,
        x: Tensor<3>,
        past: Option<KeyValue>,
        masked: Tensor<4, Bool>,
        pass: &Pass,
    ) -> (Tensor<3>, KeyValue) {
        let [_, _, width] = x.dims();
        // [batch, length, 3 * width] -> three of [batch, heads, length, size]
        let joined = self.query_key_value.forward(x);
        let part = |i: usize| split_heads(joined.clone().narrow(2, i * width, width), self.heads);
        let query = part(0) / ((width / self.heads) as f64).sqrt();
        let (keys, values) = behind(past, part(1), part(2));
        let mixed = attend(query, keys.clone(), values.clone(), masked, None, &self.weight_dropout, pass);
        (self.dropout.forward(self.output.forward(join_heads(mixed)), pass), (keys, values))
    }
}
