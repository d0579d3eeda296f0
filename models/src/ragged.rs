//! Rows of a padded batch as they are computed: as they are, or as one row of their real tokens.

use std::iter::repeat_n;
use std::ops::Range;

use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use firebrick_datasets::TokenBatch;
use firebrick_datasets::collators::{Inputs, Seq2SeqBatch};
use firebrick_kernels::{Ragged, Reads, cast};
use firebrick_strategies::{ContextColumns, Pass};

use crate::attention::{causal_reads, firsts};
use crate::key_value::{RealColumns, real_columns};

/// Which tokens of a padded batch `[rows, columns]` are computed, and where: all of them as they stand, or the real ones
/// of all rows in a single row, `[1, total]`, one after the other; or, where ranks share the tokens of a batch, some
/// columns of each row.
#[derive(Clone, Debug)]
pub struct Tokens {
    /// The columns of each row that are computed if padding is dropped.
    real: Vec<Range<usize>>,
    columns: usize,
    /// Where the real tokens stand, if padding is dropped.
    ragged: Option<Ragged>,
    /// The columns that are computed, if not all are.
    own: Option<ContextColumns>,
}

impl Tokens {
    /// The tokens of this rank, where ranks share those of a batch; elsewhere as [`of`](Self::of).
    pub fn shared(inputs: &Inputs, pass: &Pass) -> Self {
        match pass.context_columns(inputs.shape()[1]) {
            Some(own) => Self { own: Some(own), ..Self::padded(inputs) },
            None => Self::of(inputs, pass),
        }
    }

    /// Drops the padding of a batch if there is any and the pass [drops](Pass::drops_padding) it.
    pub fn of(inputs: &Inputs, pass: &Pass) -> Self {
        let [tokens] = Self::dropping([Self::padded(inputs)], pass);
        tokens
    }

    /// Drops the padding of sources and targets if there is any in either and the pass [drops](Pass::drops_padding) it:
    /// of both or neither, since targets read sources.
    pub fn of_both(batch: &Seq2SeqBatch, pass: &Pass) -> [Self; 2] {
        Self::dropping(Self::padded_both(batch), pass)
    }

    /// The tokens that a causal model reads: all columns but the last or, if padding is dropped, the real tokens of each
    /// row but its last, which is only a label; or its `own` of the columns that ranks share.
    pub fn of_readers(batch: &TokenBatch, pass: &Pass, own: Option<ContextColumns>) -> Self {
        let shape @ [_, columns] = batch.shape();
        let mut real = real_columns(batch.host_mask(), shape);
        for row in &mut real {
            row.end = row.start.max(row.end.saturating_sub(1));
        }
        let all = Self { real, columns: columns.saturating_sub(1), ragged: None, own };
        if all.own.is_some() {
            return all;
        }
        let [tokens] = Self::dropping([all], pass);
        tokens
    }

    fn dropping<const N: usize>(all: [Self; N], pass: &Pass) -> [Self; N] {
        let kept = all.each_ref().map(|tokens| tokens.real.iter().map(Range::len).sum::<usize>());
        let there = all.each_ref().map(|tokens| tokens.real.len() * tokens.columns);
        let is_ragged = kept != there && !kept.contains(&0) && pass.drops_padding();
        let ragged = |real: &[Range<usize>]| is_ragged.then(|| Ragged::new(real.iter().map(Range::len)));
        all.map(|tokens| Self { ragged: ragged(&tokens.real), ..tokens })
    }

    /// Keeps all tokens where they stand.
    pub fn padded(inputs: &Inputs) -> Self {
        let [_, columns] = inputs.shape();
        // A row without real tokens reads its padding, so that none of it can be dropped.
        Self { real: RealColumns::of(inputs).rows, columns, ragged: None, own: None }
    }

    /// Keeps all tokens of sources and of targets where they stand.
    pub fn padded_both(batch: &Seq2SeqBatch) -> [Self; 2] {
        let shape @ [_, columns] = batch.target_shape();
        let real = real_columns(batch.host_decoder_mask(), shape);
        [Self::padded(batch.source()), Self { real, columns, ragged: None, own: None }]
    }

    /// Returns whether padding is dropped.
    pub fn is_ragged(&self) -> bool {
        self.ragged.is_some()
    }

    /// Returns whether the batch's columns are computed where they stand.
    pub fn are_in_columns(&self) -> bool {
        self.ragged.is_none() && self.own.is_none()
    }

    /// Returns whether there is no token to compute.
    pub fn is_empty(&self) -> bool {
        self.shape().contains(&0)
    }

    /// Returns the shape of the tokens that are computed.
    pub fn shape(&self) -> [usize; 2] {
        match (&self.ragged, &self.own) {
            (Some(rows), _) => [1, rows.total()],
            (None, Some(columns)) => [self.real.len(), columns.own.len()],
            (None, None) => [self.real.len(), self.columns],
        }
    }

    /// Returns the row of each token that is computed.
    pub fn rows(&self) -> Vec<usize> {
        let length = |row: usize| match &self.ragged {
            None => self.shape()[1],
            Some(rows) => rows.row(row).len(),
        };
        (0..self.real.len()).flat_map(|row| repeat_n(row, length(row))).collect()
    }

    /// Returns the position of each token of the batch among the real tokens of its row, row by row. Padding has that of
    /// the nearest real token.
    pub fn places(&self) -> Vec<i32> {
        let of_row = |real: &Range<usize>| {
            let (first, last) = (real.start, real.end.saturating_sub(1).max(real.start));
            (0..self.columns).map(move |column| (column.clamp(first, last) - first) as i32)
        };
        self.real.iter().flat_map(of_row).collect()
    }

    /// Selects the values of the tokens that are computed from those of the batch, row by row. Columns that the batch lacks
    /// are filled.
    pub fn select<T: Copy>(&self, values: &[T], fill: T) -> Vec<T> {
        match (&self.ragged, &self.own) {
            (Some(_), _) => self.of_real(values),
            (None, Some(columns)) => {
                let value = |row: &[T], column: usize| row.get(column).copied().unwrap_or(fill);
                let rows = values.chunks(self.columns.max(1));
                rows.flat_map(|row| columns.own.iter().map(move |column| value(row, *column))).collect()
            }
            (None, None) => values.to_vec(),
        }
    }

    /// Selects the values of real tokens.
    fn of_real<T: Copy>(&self, values: &[T]) -> Vec<T> {
        let rows = values.chunks(self.columns.max(1)).zip(&self.real);
        rows.flat_map(|(row, real)| &row[real.clone()]).copied().collect()
    }

    /// Selects values as a tensor of the [shape](Self::shape), with 0 in columns that the batch lacks.
    pub fn ints(&self, values: &[i32], device: &Device) -> Tensor<2, Int> {
        Tensor::from_data(TensorData::new(self.select(values, 0), self.shape()), device)
    }

    /// Puts the values of the tokens that are computed back where they stand in the batch, and `fill` elsewhere.
    pub fn put_back<T: Copy>(&self, values: Vec<T>, fill: T) -> Vec<T> {
        let Some(rows) = &self.ragged else { return values };
        let mut all = vec![fill; self.real.len() * self.columns];
        for (row, real) in self.real.iter().enumerate() {
            all[row * self.columns..][real.clone()].copy_from_slice(&values[rows.row(row)]);
        }
        all
    }

    /// Returns the pass that knows where the rows stand.
    pub fn pass(&self, pass: &Pass, starts: impl FnOnce() -> Vec<usize>) -> Pass {
        match (&self.ragged, &self.own) {
            (Some(rows), _) => pass.ragged(rows.clone()),
            (None, Some(columns)) => pass.selecting(columns, starts()),
            (None, None) => pass.starting_at(starts()),
        }
    }

    /// Each token reads all real tokens of its row.
    pub fn read_whole_rows(&self) -> Reads {
        self.read_by(self)
    }

    /// Each token reads those of its row up to itself with its own label: see [`causal_reads`]. `labels` are those of the
    /// batch.
    pub fn read_causally<T: Copy + PartialEq>(&self, labels: &[T]) -> Reads {
        match &self.ragged {
            None => self.of_own(causal_reads(labels, [self.real.len(), self.columns])),
            Some(rows) => {
                let labels = self.of_real(labels);
                let starts: Vec<usize> =
                    (0..rows.len()).flat_map(|row| firsts(&labels[rows.row(row)])).collect();
                Reads::ragged(rows, rows, |row, query| starts[rows.row(row).start + query]..query + 1)
            }
        }
    }

    /// Each of the tokens `readers` reads all real tokens of its row in `self`.
    ///
    /// # Panics
    ///
    /// If one has padding and the other has dropped it.
    pub fn read_by(&self, readers: &Self) -> Reads {
        match (&self.ragged, &readers.ragged) {
            (Some(rows), Some(readers)) => Reads::ragged(readers, rows, |row, _| 0..rows.row(row).len()),
            (None, None) => {
                let shape = [self.real.len(), readers.columns, self.columns];
                let reads = Reads::new(shape, |row, _| self.real[row].clone());
                readers.of_own(reads.with_key_starts(self.real.iter().map(|row| row.start)))
            }
            _ => panic!("padding is dropped of both or of neither"),
        }
    }

    /// Returns what the columns that are computed read, given what each column of the batch reads. Those that the batch lacks
    /// read nothing.
    fn of_own(&self, all: Reads) -> Reads {
        let Some(columns) = &self.own else { return all };
        let shape = [self.real.len(), columns.all, columns.all];
        let is_there = |column| column < self.columns;
        let wide = Reads::new(shape, |row, column| if is_there(column) { all.of(row, column) } else { 0..0 });
        wide.select(columns.own.clone())
    }

    /// Returns the first real token of each row, `[rows, width]`, of hidden states of the computed tokens.
    pub fn first_of(&self, x: Tensor<3>) -> Tensor<2> {
        let start = |(row, real): (usize, &Range<usize>)| match &self.ragged {
            None => row * self.columns + real.start,
            Some(rows) => rows.row(row).start,
        };
        let places: Vec<i64> = self.real.iter().enumerate().map(|row| start(row) as i64).collect();
        let places = Tensor::<1, Int>::from_data(places.as_slice(), &x.device());
        x.flatten::<2>(0, 1).select(0, places)
    }

    /// Returns where the computed tokens of each row stand, `[rows, longest]`, if padding is dropped. Rows that are shorter
    /// than the longest end with places of another token.
    pub fn padded_places(&self, device: &Device) -> Option<Tensor<2, Int>> {
        let rows = self.ragged.as_ref()?;
        let shape = [rows.len(), rows.longest()];
        let places: Vec<i64> = (0..rows.len())
            .flat_map(|row| {
                let row = rows.row(row);
                (0..shape[1]).map(move |at| if at < row.len() { (row.start + at) as i64 } else { 0 })
            })
            .collect();
        Some(Tensor::from_data(TensorData::new(places, shape), device))
    }

    /// Returns where the neighbours of each computed token stand among the computed tokens, `[tokens, 2 * reach + 1]`, in
    /// the order of their columns. Where there is no real token, it is the number of computed tokens.
    pub fn neighbours(&self, reach: usize, device: &Device) -> Tensor<2, Int> {
        let [rows, columns] = self.shape();
        let (nothing, width) = ((rows * columns) as i64, 2 * reach + 1);
        let mut places = Vec::with_capacity(rows * columns * width);
        for (row, real) in self.real.iter().enumerate() {
            let (tokens, real) = match &self.ragged {
                None => {
                    let first = row * self.columns;
                    (first..first + self.columns, first + real.start..first + real.end)
                }
                Some(rows) => (rows.row(row), rows.row(row)),
            };
            for token in tokens {
                places.extend((0..width).map(|at| match (token + at).checked_sub(reach) {
                    Some(place) if real.contains(&place) => place as i64,
                    _ => nothing,
                }));
            }
        }
        Tensor::from_data(TensorData::new(places, [rows * columns, width]), device)
    }

    /// Returns the mean of the real tokens of each row, `[rows, width]`, of hidden states of the computed tokens. It is
    /// computed in f32.
    pub fn mean_of(&self, x: Tensor<3>) -> Tensor<2> {
        let (count, [_, length, width]) = (self.real.len(), x.dims());
        let mut shares = vec![0f32; count * length];
        for (row, real) in self.real.iter().enumerate() {
            let places = self.ragged.as_ref().map_or(real.clone(), |rows| rows.row(row));
            let share = 1.0 / places.len() as f32;
            shares[row * length..][places].fill(share);
        }
        let shape = if self.is_ragged() { [1, count, length] } else { [count, 1, length] };
        let shares = Tensor::<3>::from_data(TensorData::new(shares, shape), &x.device());
        let dtype = FloatDType::from(x.dtype());
        cast(shares.matmul(cast(x, FloatDType::F32)).reshape([count, width]), dtype)
    }
}

#[cfg(test)]
#[path = "ragged_tests.rs"]
mod tests;
