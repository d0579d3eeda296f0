//! A block of queries of one head, and the tiles of keys that they read.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use super::ops::Plan;
use super::product::ROWS;
use super::view::View;
use crate::elements::Float;

/// The most queries of a block.
pub const LINE: usize = 64;
/// The most keys of a tile.
pub const KEYS: usize = 64;
/// The elements of the widest vectors.
pub const LANES: usize = 16;

/// The inputs of an attention.
#[derive(Clone, Copy)]
pub struct Inputs<'a, T> {
    pub query: View<'a, T>,
    pub key: View<'a, T>,
    pub value: View<'a, T>,
    pub bias: Option<View<'a, f32>>,
    pub plan: &'a Plan,
}

impl<'a, T: Float> Inputs<'a, T> {
    pub fn size(&self) -> usize {
        self.query.shape[3]
    }

    /// The size of a head in whole vectors.
    pub fn width(&self) -> usize {
        self.size().next_multiple_of(LANES)
    }

    /// Queries that share a key.
    pub fn group(&self) -> usize {
        self.query.shape[1] / self.key.shape[1]
    }

    /// Queries of a block: fewer than [`LINE`] if there are no more.
    pub fn columns(&self) -> usize {
        columns(self.query.shape[2])
    }

    /// Loads the tile of keys from `first`, and returns their number, up to a multiple of [`ROWS`].
    #[inline(always)]
    pub fn load_keys(
        &self,
        [row, head]: [usize; 2],
        first: usize,
        key: &mut [f32],
        value: Option<&mut [f32]>,
    ) -> usize {
        let count = KEYS.min(self.key.shape[2] - first);
        let keys = count.next_multiple_of(ROWS);
        let width = self.width();
        self.key.widen([row, head, first], count, &mut key[..keys * width], width);
        if let Some(value) = value {
            self.value.widen([row, head, first], count, &mut value[..keys * width], width);
        }
        keys
    }
}

/// Queries of a block, of `length` in all.
pub fn columns(length: usize) -> usize {
    length.next_multiple_of(LANES).clamp(LANES, LINE)
}

/// The memory that one task computes in. Each buffer holds a matrix whose name says its rows; `turned` ones are
/// `[size, queries]`.
pub struct Scratch {
    pub queries: Vec<f32>,
    pub queries_turned: Vec<f32>,
    pub grads: Vec<f32>,
    pub grads_turned: Vec<f32>,
    pub outputs: Vec<f32>,
    pub key: Vec<f32>,
    pub value: Vec<f32>,
    /// `[keys, queries]`.
    pub scores: Vec<f32>,
    pub slopes: Vec<f32>,
    pub turned: Vec<f32>,
    pub bounds: Vec<f32>,
    pub most: Vec<f32>,
    pub sums: Vec<f32>,
    pub factors: Vec<f32>,
}

impl Scratch {
    /// `width` is the size of a head in whole vectors, `columns` the queries of a block.
    pub fn new(width: usize, columns: usize, gradient: bool) -> Self {
        let zeros = |count: usize| vec![0.0; count];
        let of_gradient = |count: usize| if gradient { zeros(count) } else { Vec::new() };
        Self {
            queries: zeros(columns * width),
            queries_turned: zeros(columns * width),
            grads: of_gradient(columns * width),
            grads_turned: of_gradient(columns * width),
            outputs: of_gradient(columns * width),
            key: zeros(KEYS * width),
            value: zeros(KEYS * width),
            scores: zeros(KEYS * columns),
            slopes: of_gradient(KEYS * columns),
            turned: zeros(columns * width),
            bounds: zeros(2 * columns),
            most: zeros(columns),
            sums: zeros(columns),
            factors: zeros(columns),
        }
    }
}

/// A block of queries.
#[derive(Clone, Copy)]
pub struct Block<'a, T> {
    pub inputs: Inputs<'a, T>,
    /// The row of the batch, the head, and the first query.
    pub at: [usize; 3],
    /// Queries of a whole block.
    pub columns: usize,
    /// The queries that there are.
    pub count: usize,
    /// The range of keys of each query of the block.
    ranges: &'a [[u32; 2]],
    /// The keys that some query reads, and those that all read.
    some: [usize; 2],
    all: [usize; 2],
}

impl<'a, T: Float> Block<'a, T> {
    pub fn new(inputs: Inputs<'a, T>, at: [usize; 3]) -> Self {
        let [row, _, query] = at;
        let columns = inputs.columns();
        let count = columns.min(inputs.query.shape[2] - query);
        let ranges = &inputs.plan.reads.of_row(row)[query..query + count];
        let read = ranges.iter().filter(|[from, to]| from < to);
        let some = [
            read.clone().map(|range| range[0]).min().unwrap_or(0) as usize,
            read.map(|range| range[1]).max().unwrap_or(0) as usize,
        ];
        let all = [
            ranges.iter().map(|range| range[0]).max().unwrap_or(0) as usize,
            ranges.iter().map(|range| range[1]).min().unwrap_or(0) as usize,
        ];
        Self { inputs, at, columns, count, ranges, some, all }
    }

    /// The row of the batch, and the head of the keys.
    pub fn key_row(&self) -> [usize; 2] {
        [self.at[0], self.at[1] / self.inputs.group()]
    }

    /// The keys that a query of the block reads.
    pub fn reads(&self, query: usize) -> Range<u32> {
        self.ranges[query][0]..self.ranges[query][1]
    }

    /// The first key of each tile that some query reads.
    pub fn tiles(&self) -> impl Iterator<Item = usize> + use<T> {
        let [from, to] = self.some;
        (from / KEYS * KEYS..to).step_by(KEYS)
    }

    /// Returns whether all queries read all keys of a tile.
    pub fn is_all_read(&self, first: usize, keys: usize) -> bool {
        self.all[0] <= first && first + keys <= self.all[1]
    }

    /// Loads queries, scaled and turned, and the bounds of what they read. Absent queries read nothing.
    #[inline(always)]
    pub fn load_queries(&self, scratch: &mut Scratch) {
        let (width, scale) = (self.inputs.width(), self.inputs.plan.scale as f32);
        self.inputs.query.widen(self.at, self.count, &mut scratch.queries, width);
        for value in &mut scratch.queries {
            *value *= scale;
        }
        turn(&scratch.queries, width, LOG2_E, &mut scratch.queries_turned, self.columns);
        let (from, to) = scratch.bounds.split_at_mut(self.columns);
        from.fill(0.0);
        to.fill(0.0);
        for ((range, from), to) in self.ranges.iter().zip(from).zip(to) {
            [*from, *to] = range.map(|bound| bound as f32);
        }
    }

    /// Adds the bias to scores, `[keys, queries]`.
    #[inline(always)]
    pub fn add_bias(&self, scores: &mut [f32], first: usize, keys: usize) {
        let Some(bias) = self.inputs.bias else { return };
        let [row, head, query] = self.at;
        for at in 0..self.count {
            let bias = &bias.row(row, head, query + at)[first..];
            for (score, bias) in scores[at..].iter_mut().step_by(self.columns).zip(bias).take(keys) {
                *score += bias * LOG2_E;
            }
        }
    }
}

/// Turns rows of `width` elements into `[width, columns]`, times `factor`.
#[inline(always)]
pub fn turn(rows: &[f32], width: usize, factor: f32, to: &mut [f32], columns: usize) {
    for (at, to) in to.chunks_exact_mut(columns).enumerate() {
        for (to, from) in to.iter_mut().zip(rows[at..].iter().step_by(width)) {
            *to = from * factor;
        }
    }
}
