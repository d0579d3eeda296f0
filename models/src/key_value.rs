//! A cache of the keys and values of tokens that a decoder has read.

use burn::tensor::{Int, Tensor};

use super::real_columns::RealColumns;

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
    /// The keys and values of each block; empty before the first token.
    pub own: Vec<KeyValue>,
    /// The cache of the source, if the blocks attend to one.
    pub source: Option<PastSource>,
}

/// A decoder's cache of the sources.
#[derive(Clone, Debug)]
pub(crate) struct PastSource {
    /// The keys and values of each block.
    pub blocks: Vec<KeyValue>,
    /// The columns of the sources that are read.
    pub real: RealColumns,
}

impl Past {
    /// The number of tokens in each row, padding included.
    pub fn columns(&self) -> usize {
        self.own.first().map_or(0, |(keys, _)| keys.dims()[2])
    }

    /// Bytes of the keys and values of one token in a row.
    pub fn bytes_per_token(&self) -> f64 {
        let bytes = |tensor: &Tensor<4>| {
            let [_, heads, _, size] = tensor.dims();
            (heads * size * tensor.dtype().size()) as f64
        };
        self.own.iter().map(|(keys, values)| bytes(keys) + bytes(values)).sum()
    }

    /// Keeps the cache of the source alone, if there is one.
    pub fn of_source(self) -> Option<Self> {
        self.source.map(|source| Self { own: Vec::new(), source: Some(source) })
    }

    /// Selects rows by index; rows may be left out or repeated.
    pub fn select(self, rows: &[usize]) -> Self {
        let indices: Vec<i64> = rows.iter().map(|&row| row as i64).collect();
        let select = |(keys, values): KeyValue| {
            let indices = Tensor::<1, Int>::from_data(indices.as_slice(), &keys.device());
            (keys.select(0, indices.clone()), values.select(0, indices))
        };
        let source = self.source.map(|PastSource { blocks, real }| PastSource {
            blocks: blocks.into_iter().map(select).collect(),
            real: real.select(rows),
        });
        Self { own: self.own.into_iter().map(select).collect(), source }
    }
}
