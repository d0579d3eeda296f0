//! Which keys each query reads: one contiguous range per query.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

#[cfg(feature = "cube")]
use burn::tensor::DType;
use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use crate::Ragged;
#[cfg(feature = "cube")]
use crate::device::is_cube;

/// The range of keys that each query of an [`attention`](crate::attention()) reads, for one row of the batch or for each.
///
/// Every usual mask is one: [`causal`](Self::causal), [`full`](Self::full), padding on either side, samples packed into a
/// row, a [sliding window](Self::within), and queries that continue after cached keys. Keys outside a query's range cost
/// nothing; a query with an empty range reads nothing and gives zeros. Rows of different lengths may stand one after the
/// other, without padding: [`ragged`](Self::ragged).
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
pub struct Reads {
    shared: Arc<Ranges>,
    /// The column where each row's sample of keys starts; `None` means the column where its sample of queries starts.
    key_starts: Option<Arc<[usize]>>,
    /// The own key of each query of a row; `None` means that the last query's own key is the last key.
    own_keys: Option<Arc<[usize]>>,
    /// The column of each key, if keys were selected; `None` means that keys are numbered from 0.
    key_columns: Option<Arc<[usize]>>,
}

struct Ranges {
    /// Rows, queries, keys: those of the tensors.
    shape: [usize; 3],
    /// Where rows of queries and of keys stand, if each tensor holds all of them in one row.
    ragged: Option<[Ragged; 2]>,
    /// The first key of each query and the key after the last, counted from the start of the row's keys.
    ranges: Vec<[u32; 2]>,
    masks: Mutex<Vec<(Device, Tensor<4, Bool>)>>,
    /// The ranges on a device, for kernels.
    #[cfg(feature = "cube")]
    bounds: Mutex<Vec<(Device, Tensor<1, Int>)>>,
}

impl fmt::Debug for Reads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [rows, queries, keys] = self.shared.shape;
        match &self.shared.ragged {
            None => write!(f, "Reads({queries} queries of {keys} keys in {rows} rows)"),
            Some([rows, _]) => {
                write!(f, "Reads({queries} queries of {keys} keys of {} rows in one)", rows.len())
            }
        }
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
        Self::of_rows(shape, None, (0..rows).map(|_| [queries, keys]), range)
    }

    /// Like [`new`](Self::new), for rows of different lengths that stand one after the other: `queries` places those of
    /// queries `[1, heads, total, size]`, `keys` those of keys and values. Query `query` of row `row` reads the keys of
    /// that row that `range` returns. Queries, keys and ranges count from the start of their row.
    ///
    /// ```
    /// use firebrick_kernels::{Ragged, Reads};
    ///
    /// let rows = Ragged::new([2, 3]);
    /// let reads = Reads::ragged(&rows, &rows, |_, query| 0..query + 1);
    /// assert_eq!((reads.shape(), reads.of(1, 2)), ([1, 5, 5], 0..3));
    /// ```
    ///
    /// # Panics
    ///
    /// If there are not as many rows of queries as of keys, and as [`new`](Self::new).
    pub fn ragged(queries: &Ragged, keys: &Ragged, range: impl Fn(usize, usize) -> Range<usize>) -> Self {
        let rows = queries.len();
        assert_eq!(rows, keys.len(), "Reads: there must be one row of keys for each row of queries");
        let lengths = (0..rows).map(|row| [queries.row(row).len(), keys.row(row).len()]);
        let shape = [1, queries.total(), keys.total()];
        Self::of_rows(shape, Some([queries.clone(), keys.clone()]), lengths, range)
    }

    /// The ranges of rows with these numbers of queries and keys.
    fn of_rows(
        shape: [usize; 3],
        ragged: Option<[Ragged; 2]>,
        rows: impl Iterator<Item = [usize; 2]>,
        range: impl Fn(usize, usize) -> Range<usize>,
    ) -> Self {
        let mut ranges = Vec::with_capacity(shape[0] * shape[1]);
        for (row, [queries, keys]) in rows.enumerate() {
            assert!(keys <= 1 << 24, "Reads: there may be at most 2^24 keys, found {keys}");
            for query in 0..queries {
                let Range { start, end } = range(row, query);
                let is_empty = start >= end;
                assert!(
                    is_empty || end <= keys,
                    "Reads: query {query} of row {row} reads keys {start}..{end}, but there are {keys}"
                );
                ranges.push(if is_empty { [0, 0] } else { [start as u32, end as u32] });
            }
        }
        let shared = Arc::new(Ranges {
            shape,
            ragged,
            ranges,
            masks: Mutex::default(),
            #[cfg(feature = "cube")]
            bounds: Mutex::default(),
        });
        Self { shared, key_starts: None, own_keys: None, key_columns: None }
    }

    /// Sets the column where the sample of keys starts in each row, for keys that are padded apart from the queries, such
    /// as the source that a decoder reads. Dropout counts keys from there, so its mask doesn't depend on the padding.
    /// Default: where the samples of the queries start. [Ragged](Self::ragged) rows have no padding.
    ///
    /// # Panics
    ///
    /// If there isn't a start for each row.
    pub fn with_key_starts(self, starts: impl IntoIterator<Item = usize>) -> Self {
        let starts: Arc<[usize]> = starts.into_iter().collect();
        assert_eq!(starts.len(), self.rows(), "Reads: there must be a start of keys for each row");
        Self { key_starts: Some(starts), ..self }
    }

    /// The column where the sample of keys starts in each row of a batch of so many rows, if that is known.
    pub(crate) fn key_starts(&self, batch: usize) -> Option<Vec<usize>> {
        let starts = self.key_starts.as_ref().filter(|_| self.shared.ragged.is_none())?;
        Some((0..batch).map(|row| starts[row % starts.len()]).collect())
    }

    /// Each query reads the keys up to its own, in all rows alike.
    pub fn causal(length: usize) -> Self {
        Self::new([1, length, length], |_, query| 0..query + 1)
    }

    /// Each query reads every key, in all rows alike.
    pub fn full(queries: usize, keys: usize) -> Self {
        Self::new([1, queries, keys], |_, _| 0..keys)
    }

    /// Returns the reads of some queries of each row, where each query's own key has its place: those that one of the
    /// ranks that share the tokens of a batch computes.
    ///
    /// ```
    /// use firebrick_kernels::Reads;
    ///
    /// let reads = Reads::causal(8).select([0, 1, 6, 7].into());
    /// assert_eq!((reads.shape(), reads.of(0, 2)), ([1, 4, 8], 0..7));
    /// // Windows end at the own key.
    /// assert_eq!(reads.within(3).of(0, 2), 4..7);
    /// ```
    ///
    /// # Panics
    ///
    /// If there is no such query, the rows are [ragged](Self::ragged), or there are not as many keys as queries.
    pub fn select(&self, queries: Arc<[usize]>) -> Self {
        let [rows, all, keys] = self.shared.shape;
        let is_square = all == keys && self.shared.ragged.is_none();
        assert!(is_square, "Reads: queries are selected where each has a key of its own, found {self:?}");
        let shape = [rows, queries.len(), keys];
        let selected = Self::new(shape, |row, query| self.of(row, queries[query]));
        Self { key_starts: self.key_starts.clone(), own_keys: Some(queries), ..selected }
    }

    /// Returns the reads of some of the keys, whose columns ascend: of the keys of one of the ranks that share the tokens of a batch.
    ///
    /// ```
    /// use firebrick_kernels::Reads;
    ///
    /// let reads = Reads::causal(8).of_keys([2, 3, 6, 7].into());
    /// assert_eq!((reads.shape(), reads.of(0, 1), reads.of(0, 6)), ([1, 8, 4], 0..0, 0..3));
    /// ```
    ///
    /// # Panics
    ///
    /// If the rows are [ragged](Self::ragged).
    pub fn of_keys(&self, columns: Arc<[usize]>) -> Self {
        assert!(
            self.shared.ragged.is_none(),
            "Reads: keys are selected of rows of one length, found {self:?}"
        );
        let [rows, queries, _] = self.shared.shape;
        let place = |column: usize| columns.partition_point(|one| *one < column);
        let of_keys = Self::new([rows, queries, columns.len()], |row, query| {
            let Range { start, end } = self.of(row, query);
            place(start)..place(end)
        });
        Self { key_starts: self.key_starts.clone(), key_columns: Some(columns), ..of_keys }
    }

    /// The columns of the keys, if they were [selected](Self::of_keys).
    pub(super) fn key_columns(&self) -> Option<&Arc<[usize]>> {
        self.key_columns.as_ref()
    }

    /// Narrows each range to the last `window` keys up to the query's own, and to none after it. The last query's own key
    /// is the last key, unless queries were [selected](Self::select).
    ///
    /// # Panics
    ///
    /// If there are more queries than keys.
    pub fn within(&self, window: usize) -> Self {
        self.narrowed(|own| (own + 1).saturating_sub(window)..own + 1)
    }

    /// Narrows each range to the query's own key and those at most `distance` before or after it. The last query's own
    /// key is the last key, unless queries were [selected](Self::select).
    ///
    /// ```
    /// use firebrick_kernels::Reads;
    ///
    /// let reads = Reads::full(5, 5).around(1);
    /// assert_eq!((reads.of(0, 0), reads.of(0, 2)), (0..2, 1..4));
    /// ```
    ///
    /// # Panics
    ///
    /// If there are more queries than keys.
    pub fn around(&self, distance: usize) -> Self {
        self.narrowed(|own| own.saturating_sub(distance)..own.saturating_add(distance).saturating_add(1))
    }

    /// Narrows each range to that around the query's own key.
    fn narrowed(&self, around: impl Fn(usize) -> Range<usize>) -> Self {
        let within = |row: usize, query: usize| {
            let [queries, keys] = self.lengths(row);
            assert!(
                queries <= keys,
                "Reads: a window needs a key for each of {queries} queries, found {keys}"
            );
            let own = self.own_keys.as_ref().map_or(query + keys - queries, |own| own[query]);
            let (window, range) = (around(own), self.of(row, query));
            range.start.max(window.start)..range.end.min(window.end)
        };
        let rows = (0..self.rows()).map(|row| self.lengths(row));
        let (key_starts, own_keys) = (self.key_starts.clone(), self.own_keys.clone());
        let narrowed = Self::of_rows(self.shared.shape, self.shared.ragged.clone(), rows, within);
        Self { key_starts, own_keys, ..narrowed }
    }

    /// The number of rows, which is 1 if all rows of a batch are alike, of queries and of keys; of
    /// [ragged](Self::ragged) rows, `[1, total, total]`, as in the tensors.
    pub fn shape(&self) -> [usize; 3] {
        self.shared.shape
    }

    /// The most queries and the most keys of a row.
    pub fn longest(&self) -> [usize; 2] {
        match &self.shared.ragged {
            None => [self.shared.shape[1], self.shared.shape[2]],
            Some(rows) => rows.each_ref().map(Ragged::longest),
        }
    }

    /// Returns the keys that a query reads.
    ///
    /// # Panics
    ///
    /// If there is no such row or query.
    pub fn of(&self, row: usize, query: usize) -> Range<usize> {
        let is_there = row < self.rows() && query < self.lengths(row)[0];
        assert!(is_there, "Reads: no query {query} of row {row} in {self:?}");
        let [start, end] = self.of_row(row)[query];
        start as usize..end as usize
    }

    /// Returns the length of each query's sample: the number of keys between the first one that the query reads and the last
    /// one that is read by any query of the row that starts at the same key. Rows stand one after the other.
    ///
    /// ```
    /// use firebrick_kernels::Reads;
    ///
    /// // Two samples in a row.
    /// let reads = Reads::new([1, 5, 5], |_, query| if query < 2 { 0..query + 1 } else { 2..query + 1 });
    /// assert_eq!(reads.sample_lengths(), [2, 2, 3, 3, 3]);
    /// ```
    pub fn sample_lengths(&self) -> Vec<u32> {
        let of_row = |row| self.of_row(row).chunk_by(|[a, _], [b, _]| a == b);
        let of_sample = |sample: &[[u32; 2]]| {
            let length = sample.iter().map(|[start, end]| end - start).max().unwrap_or(0);
            std::iter::repeat_n(length, sample.len())
        };
        (0..self.rows()).flat_map(of_row).flat_map(of_sample).collect()
    }

    /// Where rows of queries and of keys stand, if all are in one row of their tensor.
    pub(crate) fn ragged_rows(&self) -> Option<&[Ragged; 2]> {
        self.shared.ragged.as_ref()
    }

    /// The same of rows that are padded at the right. Padding reads nothing.
    pub(crate) fn padded(&self) -> Self {
        let [queries, keys] = self.longest();
        Self::new([self.rows(), queries, keys], |row, query| {
            if query < self.lengths(row)[0] { self.of(row, query) } else { 0..0 }
        })
    }

    /// The number of rows, which is 1 if all rows of a batch are alike.
    fn rows(&self) -> usize {
        self.shared.ragged.as_ref().map_or(self.shared.shape[0], |[rows, _]| rows.len())
    }

    /// The number of queries and of keys of a row.
    fn lengths(&self, row: usize) -> [usize; 2] {
        match &self.shared.ragged {
            None => [self.shared.shape[1], self.shared.shape[2]],
            Some(rows) => rows.each_ref().map(|rows| rows.row(row).len()),
        }
    }

    /// The ranges of one row of a batch.
    pub(crate) fn of_row(&self, row: usize) -> &[[u32; 2]] {
        let [rows, queries, _] = self.shared.shape;
        match &self.shared.ragged {
            None => &self.shared.ranges[(row % rows) * queries..][..queries],
            Some([rows, _]) => &self.shared.ranges[rows.row(row)],
        }
    }

    /// Returns which queries read nothing, `[rows, 1, queries, 1]`, if one does.
    pub(super) fn empty(&self, device: &Device) -> Option<Tensor<4, Bool>> {
        let [rows, queries, _] = self.shared.shape;
        let empty: Vec<bool> = self.shared.ranges.iter().map(|[start, end]| start == end).collect();
        let data = || TensorData::new(empty.clone(), [rows, 1, queries, 1]);
        empty.contains(&true).then(|| Tensor::from_data(data(), device))
    }

    /// Returns whether a query reads nothing.
    pub(crate) fn has_empty(&self) -> bool {
        self.shared.ranges.iter().any(|[start, end]| start == end)
    }

    /// Returns the mask `[rows, 1, queries, keys]`, true where a query must not read a key. It is created once for each
    /// device.
    pub fn masked(&self, device: &Device) -> Tensor<4, Bool> {
        let device = device.clone().inner();
        let mut masks = self.shared.masks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, mask)) = masks.iter().find(|(known, _)| *known == device) {
            return mask.clone();
        }
        let mask = self.computed(&device);
        masks.push((device, mask));
        masks[masks.len() - 1].1.clone()
    }

    /// Returns whether each query reads the keys up to its own, in all rows alike, where the last query's own key is the
    /// last one.
    #[cfg(feature = "cube")]
    fn is_causal(&self) -> bool {
        let [rows, queries, keys] = self.shared.shape;
        let own = |query: usize| [0, (query + 1 + keys - queries) as u32];
        rows == 1
            && keys >= queries
            && self.shared.ragged.is_none()
            && self.shared.ranges.iter().enumerate().all(|(query, range)| *range == own(query))
    }

    /// Returns the first key of each query and the key after the last, `[rows * queries * 2]`, for the kernels of a
    /// device, to which they are sent once. `None` if the kernels compute them: if each query reads the keys up to its
    /// own.
    #[cfg(feature = "cube")]
    pub(super) fn bounds(&self, device: &Device) -> Option<Tensor<1, Int>> {
        let device = device.clone().inner();
        if !is_cube(&device) || self.is_causal() {
            return None;
        }
        let mut sent = self.shared.bounds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, bounds)) = sent.iter().find(|(known, _)| *known == device) {
            return Some(bounds.clone());
        }
        let bounds: Vec<i32> = self.shared.ranges.iter().flatten().map(|bound| *bound as i32).collect();
        let bounds = Tensor::from_data(bounds.as_slice(), (&device, DType::I32));
        sent.push((device, bounds));
        Some(sent[sent.len() - 1].1.clone())
    }

    /// Sends the bounds to the device, which compares them with the keys.
    fn computed(&self, device: &Device) -> Tensor<4, Bool> {
        let [rows, queries, keys] = self.shared.shape;
        let shape = [rows, 1, queries, keys];
        if shape.contains(&0) {
            // Burn cannot expand to a dimension of 0.
            return Tensor::from_data(TensorData::new(Vec::<bool>::new(), shape), device);
        }
        let first =
            |row: usize| self.shared.ragged.as_ref().map_or(0, |[_, keys]| keys.row(row).start as i64);
        let bound = |at: usize| {
            let row = |row| self.of_row(row).iter().map(move |range| first(row) + i64::from(range[at]));
            let bounds = (0..self.rows()).flat_map(row).collect::<Vec<_>>();
            Tensor::<4, Int>::from_data(TensorData::new(bounds, [rows, 1, queries, 1]), device).expand(shape)
        };
        let key = Tensor::<1, Int>::arange(0..keys as i64, device).reshape([1, 1, 1, keys]).expand(shape);
        key.clone().lower(bound(0)).bool_or(key.greater_equal(bound(1)))
    }
}
