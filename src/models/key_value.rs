//! Keys and values of tokens that a decoder has read, so that it need not read them again.

use burn::tensor::{Bool, Int, Tensor};

/// Of one block: `[batch, heads, length, size]` each.
pub(crate) type KeyValue = (Tensor<4>, Tensor<4>);

/// Those of what was read before, and behind them those of what is read now.
pub(super) fn behind(past: Option<KeyValue>, key: Tensor<4>, value: Tensor<4>) -> KeyValue {
    match past {
        None => (key, value),
        Some((keys, values)) => (Tensor::cat(vec![keys, key], 2), Tensor::cat(vec![values, value], 2)),
    }
}

/// What a decoder has read of some rows.
#[derive(Clone, Debug)]
pub(crate) struct Past {
    /// Of each block.
    pub own: Vec<KeyValue>,
    /// Of a source, where the blocks read one.
    pub source: Option<PastSource>,
}

/// What a decoder has read of the sources.
#[derive(Clone, Debug)]
pub(crate) struct PastSource {
    /// Of each block.
    pub blocks: Vec<KeyValue>,
    /// `[batch, 1, 1, length]`, true for padding.
    pub masked: Tensor<4, Bool>,
}

impl Past {
    /// Tokens of each row, padding included.
    pub fn columns(&self) -> usize {
        self.own[0].0.dims()[2]
    }

    /// Bytes of the keys and values of one token of a row.
    pub fn bytes_per_token(&self) -> f64 {
        let bytes = |tensor: &Tensor<4>| {
            let [_, heads, _, size] = tensor.dims();
            (heads * size * tensor.dtype().size()) as f64
        };
        self.own.iter().map(|(keys, values)| bytes(keys) + bytes(values)).sum()
    }

    /// Of the rows in this order, some perhaps left out and some perhaps twice.
    pub fn select(self, rows: &Tensor<1, Int>) -> Self {
        let select =
            |(keys, values): KeyValue| (keys.select(0, rows.clone()), values.select(0, rows.clone()));
        let source = self.source.map(|PastSource { blocks, masked }| PastSource {
            blocks: blocks.into_iter().map(select).collect(),
            masked: masked.select(0, rows.clone()),
        });
        Self { own: self.own.into_iter().map(select).collect(), source }
    }
}
