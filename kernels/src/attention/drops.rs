//! The dropped weights of a tile: the mask of [`dropout`](crate::dropout()), computed where it is read.

use std::sync::Arc;

#[cfg(feature = "cube")]
use burn::tensor::{DType, Device, Int, Tensor};
use pulp::Simd;

use super::Reads;
use crate::dropout::mask::{Key, spread, words};
use crate::{Samples, Site};

/// The words of a row of the batch on a device: two of its key, then where its samples of queries and of keys start, and the
/// number of the first head.
#[cfg(feature = "cube")]
pub const WORDS: usize = 5;

/// Which weights of an attention are dropped, by their positions: rows are samples, and positions along queries and
/// keys count from the start of the row's sample, or [of its keys](Reads::with_key_starts).
#[derive(Clone, Debug)]
pub struct Drops {
    keys: Vec<u64>,
    /// The columns where the samples of queries, and of keys, start in each row.
    starts: [Option<Vec<usize>>; 2],
    /// The columns of the queries, if they aren't numbered from 0.
    columns: Option<Arc<[usize]>>,
    /// The columns of the keys, if they aren't numbered from 0.
    key_columns: Option<Arc<[usize]>>,
    /// The number of the first head.
    first_head: usize,
    /// p·2³², rounded down.
    threshold: u32,
    /// 1 / (1 - p).
    factor: f32,
}

impl Drops {
    /// Returns `None` if nothing is dropped from a batch of so many rows.
    ///
    /// # Panics
    ///
    /// If the site has starts for fewer rows, or other ragged rows than the queries.
    pub fn new(prob: f64, site: Site, reads: &Reads, batch: usize) -> Option<Self> {
        let Site { draws, number, samples, from } = site;
        let (rows, starts) = match (samples, reads.ragged_rows()) {
            (Samples::Columns, None) => (batch, None),
            (Samples::Starting(starts) | Samples::Selected { starts, .. }, None) => {
                assert!(
                    starts.len() >= batch,
                    "attention: the pass knows the starts of {} rows, but the query has {batch}",
                    starts.len()
                );
                (batch, Some(starts.to_vec()))
            }
            (Samples::Ragged(known), Some([rows, _])) if known == rows => (rows.len(), None),
            _ => panic!("attention: {reads:?} does not fit the pass's {samples:?}"),
        };
        let starts = [starts.clone(), reads.key_starts(batch).or(starts)];
        let columns = match samples {
            Samples::Selected { columns, .. } => Some(columns.clone()),
            _ => None,
        };
        let keys = (0..rows).map(|row| draws.of_row(number, row)).collect();
        let (threshold, factor) = ((prob * 4_294_967_296.0) as u32, (1.0 / (1.0 - prob)) as f32);
        let key_columns = reads.key_columns().cloned();
        let drops = Self { keys, starts, columns, key_columns, first_head: from, threshold, factor };
        (threshold > 0).then_some(drops)
    }
}

#[cfg(feature = "cube")]
impl Drops {
    /// Sends what the kernel hashes to a device, in u32: for each row the two words of its key, and where its samples of
    /// queries and of keys start, and the number of the first head; then the columns of the queries, and those of the keys,
    /// unless they are numbered from 0.
    pub fn on_device(&self, device: &Device) -> Tensor<1, Int> {
        let start = |of: usize, row: usize| self.starts[of].as_ref().map_or(0, |starts| starts[row] as u32);
        let of_row = |(row, key): (usize, &u64)| {
            let [a, b] = words(*key);
            [a, b, start(0, row), start(1, row), self.first_head as u32]
        };
        let of_rows = self.keys.iter().enumerate().flat_map(of_row);
        let columns = [&self.columns, &self.key_columns].into_iter().flatten();
        let columns = columns.flat_map(|columns| columns.iter().map(|column| *column as u32));
        let all: Vec<u32> = of_rows.chain(columns).collect();
        Tensor::from_data(all.as_slice(), (&device.clone().inner(), DType::U32))
    }

    /// Returns where the [words](Self::on_device) have the columns of the queries, and those of the keys, or 0 if they have none.
    pub fn columns_at(&self) -> [usize; 2] {
        let mut end = self.keys.len() * WORDS;
        [&self.columns, &self.key_columns].map(|columns| {
            let start = columns.as_ref().map_or(0, |_| end);
            end += columns.as_ref().map_or(0, |columns| columns.len());
            start
        })
    }

    /// Returns the threshold of the words, and the factor of the weights that are kept.
    pub fn threshold_and_factor(&self) -> (u32, f32) {
        (self.threshold, self.factor)
    }
}

/// The state of the hash for each query of a block.
#[derive(Debug)]
pub struct DroppedKeys {
    first: Vec<u32>,
    second: Vec<u32>,
    /// The column where the row's sample of keys starts.
    start: usize,
    columns: Option<Arc<[usize]>>,
    threshold: u32,
    factor: f32,
}

impl DroppedKeys {
    /// The queries of one row and head from `query`; there are `queries` of them.
    pub fn of(drops: Option<&Drops>, [row, head, query]: [usize; 3], queries: usize) -> Option<Self> {
        let drops = drops?;
        let [start, of_keys] =
            drops.starts.each_ref().map(|starts| starts.as_ref().map_or(0, |starts| starts[row]));
        let [a, b] = words(drops.keys[row]);
        let of_head = Key(a, b).enter(spread(drops.first_head + head));
        // A block may end with queries that do not exist.
        let column = |query: usize| match &drops.columns {
            Some(columns) => columns.get(query).copied().unwrap_or(0),
            None => query,
        };
        let keys =
            (query..query + queries).map(|query| of_head.enter(spread(column(query).wrapping_sub(start))));
        let (first, second) = keys.map(|Key(a, b)| (a, b)).unzip();
        let (columns, threshold, factor) = (drops.key_columns.clone(), drops.threshold, drops.factor);
        Some(Self { first, second, start: of_keys, columns, threshold, factor })
    }

    /// Returns 0 for the dropped weights of a vector of queries, and 1 / (1 - p) for the others.
    #[inline(always)]
    pub fn factor<S: Simd>(&self, simd: S, at: usize, key: usize) -> S::f32s {
        let [first, second] = [&self.first, &self.second].map(|words| S::as_simd_u32s(words).0[at]);
        // A tile may end with keys that do not exist.
        let key = self.columns.as_ref().map_or(key, |columns| columns.get(key).copied().unwrap_or(0));
        let step = simd.splat_u32s(spread(key.wrapping_sub(self.start)));
        let word = hash(simd, simd.add_u32s(step, first), second);
        let is_dropped = simd.less_than_u32s(word, simd.splat_u32s(self.threshold));
        simd.select_f32s(is_dropped, simd.splat_f32s(0.0), simd.splat_f32s(self.factor))
    }
}

/// The hash of [`Key::element`], of a vector of words.
#[inline(always)]
fn hash<S: Simd>(simd: S, x: S::u32s, key: S::u32s) -> S::u32s {
    let x = simd.xor_u32s(mixed(simd, x, 16, 0x7feb_352d), key);
    mixed(simd, x, 15, 0x846c_a68b)
}

#[inline(always)]
fn mixed<S: Simd>(simd: S, x: S::u32s, bits: u32, factor: u32) -> S::u32s {
    let shifted = simd.wrapping_dyn_shr_u32s(x, simd.splat_u32s(bits));
    simd.mul_u32s(simd.xor_u32s(x, shifted), simd.splat_u32s(factor))
}
