//! Which keys each query reads: one contiguous range per query.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

/// The range of keys that each query of an [`attention`](crate::attention()) reads, for one row of the batch or for each.
///
/// Every usual mask is one: [`causal`](Self::causal), [`full`](Self::full), padding on either side, samples packed into a
/// row, a [sliding window](Self::within), and queries that continue after cached keys. Keys outside a query's range cost
/// nothing; a query with an empty range reads nothing and gives zeros.
///
/// A clone shares the ranges: 8 bytes per query, on the host. Backends without a kernel of their own read them as a mask,
/// which is created once for each device and lives as long as the ranges.
///
/// ```
/// use burn::tensor::Device;
/// use firebrick_kernels::Reads;
///
/// // Two rows of three tokens; the first token of row 1 is padding, which reads itself.
/// let starts = [0, 1];
/// let reads = Reads::new([2, 3, 3], |row, query| match query < starts[row] {
///     true => 0..query + 1,
///     false => starts[row]..query + 1,
/// });
/// assert_eq!(reads.of(1, 2), 1..3);
/// let masked: Vec<bool> = reads.masked(&Device::flex()).into_data().iter().collect();
/// assert_eq!(masked[9..], [false, true, true, true, false, true, true, false, false]);
/// ```
#[derive(Clone)]
pub struct Reads(Arc<Ranges>);

struct Ranges {
    /// Rows, queries, keys.
    shape: [usize; 3],
    /// The first key and the key after the last, `[rows, queries]`.
    ranges: Vec<[u32; 2]>,
    masks: Mutex<Vec<(Device, Tensor<4, Bool>)>>,
}

impl fmt::Debug for Reads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [rows, queries, keys] = self.0.shape;
        write!(f, "Reads({queries} queries of {keys} keys in {rows} rows)")
    }
}

impl Reads {
    /// Query `query` of row `row` reads the keys that `range` returns. The shape is `[rows, queries, keys]`, with 1 row
    /// if all rows of a batch are alike.
    ///
    /// # Panics
    ///
    /// If a range that isn't empty ends after the last key, or if there are more than 2²⁴ keys.
    pub fn new(shape: [usize; 3], range: impl Fn(usize, usize) -> Range<usize>) -> Self {
        let [rows, queries, keys] = shape;
        assert!(keys <= 1 << 24, "Reads: there may be at most 2^24 keys, found {keys}");
        let of = |row, query| {
            let Range { start, end } = range(row, query);
            let is_empty = start >= end;
            assert!(
                is_empty || end <= keys,
                "Reads: query {query} of row {row} reads keys {start}..{end}, but there are {keys}"
            );
            if is_empty { [0, 0] } else { [start as u32, end as u32] }
        };
        let ranges = (0..rows).flat_map(|row| (0..queries).map(move |query| (row, query)));
        let ranges = ranges.map(|(row, query)| of(row, query)).collect();
        Self(Arc::new(Ranges { shape, ranges, masks: Mutex::default() }))
    }

    /// Each query reads the keys up to its own, in all rows alike.
    pub fn causal(length: usize) -> Self {
        Self::new([1, length, length], |_, query| 0..query + 1)
    }

    /// Each query reads every key, in all rows alike.
    pub fn full(queries: usize, keys: usize) -> Self {
        Self::new([1, queries, keys], |_, _| 0..keys)
    }

    /// Narrows each range to the last `window` keys up to the query's own, and to none after it. The last query's own key
    /// is the last key.
    ///
    /// # Panics
    ///
    /// If there are more queries than keys.
    pub fn within(&self, window: usize) -> Self {
        let [_, queries, keys] = self.0.shape;
        assert!(queries <= keys, "Reads: a window needs a key for each of {queries} queries, found {keys}");
        Self::new(self.0.shape, |row, query| {
            let (own, range) = (query + keys - queries, self.of(row, query));
            range.start.max((own + 1).saturating_sub(window))..range.end.min(own + 1)
        })
    }

    /// Keeps the given queries.
    ///
    /// # Panics
    ///
    /// If there are fewer queries.
    pub fn of_queries(&self, queries: Range<usize>) -> Self {
        let [rows, _, keys] = self.0.shape;
        Self::new([rows, queries.len(), keys], |row, query| self.of(row, queries.start + query))
    }

    /// The number of rows, which is 1 if all rows of a batch are alike, of queries and of keys.
    pub fn shape(&self) -> [usize; 3] {
        self.0.shape
    }

    /// Returns the keys that a query reads.
    ///
    /// # Panics
    ///
    /// If there is no such row or query.
    pub fn of(&self, row: usize, query: usize) -> Range<usize> {
        let [rows, queries, _] = self.0.shape;
        assert!(row < rows && query < queries, "Reads: no query {query} of row {row} in {self:?}");
        let [start, end] = self.0.ranges[row * queries + query];
        start as usize..end as usize
    }

    /// The ranges of one row of a batch.
    pub(crate) fn of_row(&self, row: usize) -> &[[u32; 2]] {
        let [rows, queries, _] = self.0.shape;
        &self.0.ranges[(row % rows) * queries..][..queries]
    }

    /// Returns whether a query reads nothing.
    pub(crate) fn has_empty(&self) -> bool {
        self.0.ranges.iter().any(|[start, end]| start == end)
    }

    /// Returns the mask `[rows, 1, queries, keys]`, true where a query must not read a key. It is created once for each
    /// device.
    pub fn masked(&self, device: &Device) -> Tensor<4, Bool> {
        let device = device.clone().inner();
        let mut masks = self.0.masks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, mask)) = masks.iter().find(|(known, _)| *known == device) {
            return mask.clone();
        }
        let mask = self.computed(&device);
        masks.push((device, mask));
        masks[masks.len() - 1].1.clone()
    }

    /// Sends the bounds to the device, which compares them with the keys.
    fn computed(&self, device: &Device) -> Tensor<4, Bool> {
        let [rows, queries, keys] = self.0.shape;
        let shape = [rows, 1, queries, keys];
        if shape.contains(&0) {
            // Burn cannot expand to a dimension of 0.
            return Tensor::from_data(TensorData::new(Vec::<bool>::new(), shape), device);
        }
        let bound = |at: usize| {
            let bounds = self.0.ranges.iter().map(|range| i64::from(range[at])).collect::<Vec<_>>();
            Tensor::<4, Int>::from_data(TensorData::new(bounds, [rows, 1, queries, 1]), device).expand(shape)
        };
        let key = Tensor::<1, Int>::arange(0..keys as i64, device).reshape([1, 1, 1, keys]).expand(shape);
        key.clone().lower(bound(0)).bool_or(key.greater_equal(bound(1)))
    }
}
