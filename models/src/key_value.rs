//! A cache of the keys and values of tokens that a decoder has read, and the columns of real tokens, which an encoder reads.

use std::ops::Range;

use burn::tensor::{Int, Tensor};
use firebrick_datasets::collators::Inputs;
use firebrick_kernels::Reads;

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

/// The columns of each row's real tokens, which every position of an encoder reads. A row that is all padding reads all
/// of it, since softmax is undefined for a position that reads nothing.
#[derive(Clone, Debug)]
pub(crate) struct RealColumns {
    pub rows: Vec<Range<usize>>,
    columns: usize,
}

impl RealColumns {
    pub fn of(inputs: &Inputs) -> Self {
        let [_, columns] = inputs.shape();
        let mut rows = real_columns(inputs.host_mask(), inputs.shape());
        rows.iter_mut().filter(|row| row.start == row.end).for_each(|row| *row = 0..columns);
        Self { rows, columns }
    }

    /// Every one of `queries` positions reads them.
    pub fn read_by(&self, queries: usize) -> Reads {
        let reads = Reads::new([self.rows.len(), queries, self.columns], |row, _| self.rows[row].clone());
        reads.with_key_starts(self.rows.iter().map(|row| row.start))
    }

    /// Selects rows by index; rows may be left out or repeated.
    pub fn select(&self, rows: &[usize]) -> Self {
        Self { rows: rows.iter().map(|&row| self.rows[row].clone()).collect(), ..*self }
    }
}

/// The columns of each row's real tokens; none if the row has none.
pub(crate) fn real_columns(mask: &[bool], [rows, columns]: [usize; 2]) -> Vec<Range<usize>> {
    let of_row = |row: usize| {
        let row = &mask[row * columns..][..columns];
        let first = row.iter().position(|real| *real).unwrap_or(0);
        first..row.iter().rposition(|real| *real).map_or(first, |last| last + 1)
    };
    (0..rows).map(of_row).collect()
}
