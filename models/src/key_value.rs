//! A cache of the keys and values of tokens that a decoder has read.

use burn::tensor::{Bool, Int, Tensor};

/// Keys and values of one block, each `[batch, heads, length, size]`.
pub(crate) type KeyValue = (Tensor<4>, Tensor<4>);

/// Appends keys and values to those of earlier tokens.
pub(super) fn behind(past: Option<KeyValue>, key: Tensor<4>, value: Tensor<4>) -> KeyValue {
    match past {
        None => (key, value),
        Some((keys, values)) => (Tensor::cat(vec![keys, key], 2), Tensor::cat(vec![values, value], 2)),
    }
}

/// A decoder's cache for a batch of rows.
#[derive(Clone, Debug)]
pub(crate) struct Past {
    /// The keys and values of each block.
    pub own: Vec<KeyValue>,
    /// The cache of the source, if the blocks attend to one.
    pub source: Option<PastSource>,
}

/// A decoder's cache of the sources.
#[derive(Clone, Debug)]
pub(crate) struct PastSource {
    /// The keys and values of each block.
    pub blocks: Vec<KeyValue>,
    /// `[batch, 1, 1, length]`, true for padding.
    pub masked: Tensor<4, Bool>,
}

impl Past {
    /// The number of tokens in each row, padding included.
    pub fn columns(&self) -> usize {
        self.own[0].0.dims()[2]
    }

    /// Bytes of the keys and values of one token in a row.
    pub fn bytes_per_token(&self) -> f64 {
        let bytes = |tensor: &Tensor<4>| {
            let [_, heads, _, size] = tensor.dims();
            (heads * size * tensor.dtype().size()) as f64
        };
        self.own.iter().map(|(keys, values)| bytes(keys) + bytes(values)).sum()
    }

    /// Selects rows by index; rows may be left out or repeated.
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
