//! Scaled dot-product attention, what its positions read, and the causal self-attention of GPT-2.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use firebrick_kernels::{Attending, Reads, attention, attention_of_joint};
use firebrick_strategies::{Dropout, Pass, TensorPlan};

use super::gpt_shape::Shape;
use super::key_value::{KeyValue, behind};
use super::{Linear, RmsNorm};

/// Computes `softmax(scale · query · keyᵀ + bias) · value` (Vaswani et al., 2017, arXiv:1706.03762), shape
/// `[batch, heads, length, size]`.
///
/// - `key` and `value` are `[batch, key_heads, read, size]`.
/// - `bias` is `[1 or batch, heads, length, read]`, and is added in f32.
///
/// Where ranks share the tokens of a batch, the keys and values are those of this rank, and it reads those of all. Where they
/// share layers, the heads are those of this rank.
pub(super) fn attend(
    [query, key, value]: [Tensor<4>; 3],
    bias: Option<Tensor<4>>,
    scale: f64,
    reads: &Reads,
    dropout: &Dropout,
    pass: &Pass,
) -> Tensor<4> {
    let of_share = pass.of_share(query.dims()[1]);
    let how = Attending { reads, scale, cap: None, dropout: dropout.at(&of_share) };
    pass.attention([query, key, value], bias, how)
}

/// The scale of the scores of heads of this size.
pub(super) fn scale_of(size: usize) -> f64 {
    (size as f64).powf(-0.5)
}

/// `[batch, length, heads * size]` to `[batch, heads, length, size]`.
pub(super) fn split_heads(x: Tensor<3>, heads: usize) -> Tensor<4> {
    let [batch, length, width] = x.dims();
    x.reshape([batch, length, heads, width / heads]).swap_dims(1, 2)
}

/// Normalises the numbers of each head of `x`, `[batch, heads, length, size]`, if there is a norm (Dehghani et al.,
/// 2023, arXiv:2302.05442).
pub(super) fn normed_heads(norm: Option<&RmsNorm>, x: Tensor<4>, pass: &Pass) -> Tensor<4> {
    match norm {
        // Where the heads of a token stand side by side, as they were projected.
        Some(norm) => norm.of_share(x.swap_dims(1, 2), pass).swap_dims(1, 2),
        None => x,
    }
}

/// `[batch, heads, length, size]` to `[batch, length, heads * size]`.
pub(super) fn join_heads(x: Tensor<4>) -> Tensor<3> {
    let [batch, heads, length, size] = x.dims();
    x.swap_dims(1, 2).reshape([batch, length, heads * size])
}

/// What each position of these rows reads: those up to itself with its own label. Labels are the samples of a row, or
/// which tokens are real. Padding reads padding, since softmax is undefined for a position that reads nothing.
pub(super) fn causal_reads<T: PartialEq>(labels: &[T], [rows, length]: [usize; 2]) -> Reads {
    let starts: Vec<usize> = labels.chunks(length.max(1)).flat_map(firsts).collect();
    Reads::new([rows, length, length], |row, query| starts[row * length + query]..query + 1)
}

/// The first position of those with the same label around each position of a row.
pub(super) fn firsts<T: PartialEq>(row: &[T]) -> impl Iterator<Item = usize> {
    let mut start = 0;
    row.iter().enumerate().map(move |(at, label)| {
        start = if at > 0 && row[at - 1] != *label { at } else { start };
        start
    })
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

    /// `[batch, length, width]` to the same shape.
    pub(super) fn forward(&self, x: Tensor<3>, reads: &Reads, pass: &Pass) -> Tensor<3> {
        let [_, _, width] = x.dims();
        let heads = pass.share_of(self.heads);
        let joint = self.query_key_value.forward(pass.before_columns(x), pass);
        let of_share = pass.of_share(heads);
        let how = self.attending(width, reads, &of_share);
        let mixed = if pass.selects_columns() {
            let own = joint.dims()[2] / 3;
            let part = |at| split_heads(joint.clone().narrow(2, at * own, own), heads);
            pass.attention([0, 1, 2].map(part), None, how)
        } else {
            attention_of_joint(joint, heads, how)
        };
        self.dropout.forward(self.output.forward_rows(join_heads(mixed), pass), pass)
    }

    /// Like `forward`, but continues after the keys and values in `past`, and also returns the keys and values of both.
    pub(super) fn read_on(
        &self,
        x: Tensor<3>,
        past: Option<KeyValue>,
        reads: &Reads,
        pass: &Pass,
    ) -> (Tensor<3>, KeyValue) {
        let [batch, length, width] = x.dims();
        let (heads, size) = (pass.share_of(self.heads), width / self.heads);
        // [batch, length, 3 * width] -> three of [batch, heads, length, size]
        let joint = self.query_key_value.forward(pass.before_columns(x), pass);
        let joint = joint.reshape([batch, length, 3 * heads, size]);
        let part = |i: usize| joint.clone().narrow(2, i * heads, heads).swap_dims(1, 2);
        let (keys, values) = behind(past, part(1), part(2));
        let of_share = pass.of_share(heads);
        let how = self.attending(width, reads, &of_share);
        let mixed = attention(part(0), keys.clone(), values.clone(), None, how);
        (self.dropout.forward(self.output.forward_rows(join_heads(mixed), pass), pass), (keys, values))
    }

    /// The layers that ranks may divide, of attentions at this path.
    pub(super) fn tensor_plan(&self, path: &str) -> TensorPlan {
        let plan = TensorPlan::new().columns(format!("{path}.query_key_value"), [self.heads; 3]);
        plan.rows(format!("{path}.output"), self.heads)
    }

    fn attending<'a>(&self, width: usize, reads: &'a Reads, pass: &'a Pass) -> Attending<'a> {
        let scale = scale_of(width / self.heads);
        Attending { reads, scale, cap: None, dropout: self.weight_dropout.at(pass) }
    }
}

/// What each token reads among all tokens, and within a window.
pub(super) struct Ranges {
    all: Reads,
    /// The ranges within the last requested window; all blocks with a window have the same ones.
    windowed: Option<(usize, Reads)>,
}

impl Ranges {
    /// The ranges of a pass, and none within a window yet.
    pub fn of(all: Reads) -> Self {
        Self { all, windowed: None }
    }

    /// Leaves out tokens that are `window` or more columns before the token that reads. The tokens of a sample stand
    /// side by side, so the distance in columns is the distance in positions.
    pub fn within(&mut self, window: Option<usize>) -> Reads {
        let [_, columns] = self.all.longest();
        let Some(window) = window.filter(|window| *window < columns) else { return self.all.clone() };
        if let Some((_, reads)) = self.windowed.as_ref().filter(|(known, _)| *known == window) {
            return reads.clone();
        }
        let reads = self.all.within(window);
        self.windowed = Some((window, reads.clone()));
        reads
    }
}
