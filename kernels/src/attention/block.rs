//! A block of queries of one head, and the tiles of keys that they read.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use burn::backend::flex::FlexTensor;

use super::ops::Plan;
use super::product::ROWS;
use super::spans::{LANES, LINE, Spans, columns};
use crate::elements::Float;

/// The most keys of a tile: those of a block of keys.
pub const KEYS: usize = LINE;

/// The inputs of an attention.
#[derive(Clone, Copy)]
pub struct Inputs<'a, T> {
    pub query: View<'a, T>,
    pub key: View<'a, T>,
    pub value: View<'a, T>,
    pub bias: Option<View<'a, f32>>,
    /// Where the queries and the keys of each row stand.
    pub queries: &'a Spans,
    pub keys: &'a Spans,
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

    /// Heads of queries.
    pub fn heads(&self) -> usize {
        self.query.shape[1]
    }

    /// Queries that share a key.
    pub fn group(&self) -> usize {
        self.heads() / self.key.shape[1]
    }

    /// The memory of a task.
    pub fn memory(&self, gradient: bool) -> Memory {
        Memory::new(self.width(), columns(self.queries.longest()), gradient)
    }

    /// Loads the tile of keys of a row from `first`, and returns their number, up to a multiple of [`ROWS`].
    #[inline(always)]
    pub fn load_keys(
        &self,
        [row, head]: [usize; 2],
        first: usize,
        key: &mut [f32],
        value: Option<&mut [f32]>,
    ) -> usize {
        let count = KEYS.min(self.keys.length(row) - first);
        let keys = count.next_multiple_of(ROWS);
        let width = self.width();
        let [row, position] = self.keys.place(row, first);
        self.key.widen([row, head, position], count, &mut key[..keys * width], width);
        if let Some(value) = value {
            self.value.widen([row, head, position], count, &mut value[..keys * width], width);
        }
        keys
    }
}

/// The memory of a task, for the largest block of queries.
pub struct Memory {
    buffer: Vec<f32>,
    width: usize,
    gradient: bool,
}

impl Memory {
    /// `width` is the size of a head in whole vectors, `columns` the queries of the largest block.
    fn new(width: usize, columns: usize, gradient: bool) -> Self {
        let size = match gradient {
            true => 2 * KEYS * width + columns * (6 * width + 2 * KEYS + 5),
            false => 2 * KEYS * width + columns * (3 * width + KEYS + 5),
        };
        Self { buffer: vec![0.0; size], width, gradient }
    }

    /// The memory for a block of so many queries.
    pub fn of_block(&mut self, columns: usize) -> Scratch<'_> {
        let (width, gradient) = (self.width, usize::from(self.gradient));
        let mut rest = &mut self.buffer[..];
        let mut take = |count: usize| rest.split_off_mut(..count).expect("the memory is for larger blocks");
        Scratch {
            key: take(KEYS * width),
            value: take(KEYS * width),
            queries: take(columns * width),
            queries_turned: take(columns * width),
            turned: take(columns * width),
            grads: take(gradient * columns * width),
            grads_turned: take(gradient * columns * width),
            outputs: take(gradient * columns * width),
            scores: take(KEYS * columns),
            slopes: take(gradient * KEYS * columns),
            from: take(columns),
            to: take(columns),
            most: take(columns),
            sums: take(columns),
            factors: take(columns),
        }
    }
}

/// The memory that one block of queries is computed in. Each buffer holds a matrix whose name says its rows; `turned` ones
/// are `[size, queries]`.
pub struct Scratch<'a> {
    pub queries: &'a mut [f32],
    pub queries_turned: &'a mut [f32],
    pub grads: &'a mut [f32],
    pub grads_turned: &'a mut [f32],
    pub outputs: &'a mut [f32],
    pub turned: &'a mut [f32],
    pub key: &'a mut [f32],
    pub value: &'a mut [f32],
    /// `[keys, queries]`.
    pub scores: &'a mut [f32],
    pub slopes: &'a mut [f32],
    pub from: &'a mut [f32],
    pub to: &'a mut [f32],
    pub most: &'a mut [f32],
    pub sums: &'a mut [f32],
    pub factors: &'a mut [f32],
}

/// A block of queries.
#[derive(Clone, Copy)]
pub struct Block<'a, T> {
    pub inputs: Inputs<'a, T>,
    /// The row of the batch, the head, and the first query.
    pub at: [usize; 3],
    /// The row of the tensor, the head, and the position of the first query.
    pub stored: [usize; 3],
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
        let [row, head, query] = at;
        let length = inputs.queries.length(row);
        let (columns, count) = (columns(length), LINE.min(length - query));
        let [stored_row, position] = inputs.queries.place(row, query);
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
        Self { inputs, at, stored: [stored_row, head, position], columns, count, ranges, some, all }
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
        self.inputs.query.widen(self.stored, self.count, scratch.queries, width);
        for value in &mut *scratch.queries {
            *value *= scale;
        }
        turn(scratch.queries, width, LOG2_E, scratch.queries_turned, self.columns);
        scratch.from.fill(0.0);
        scratch.to.fill(0.0);
        for ((range, from), to) in self.ranges.iter().zip(&mut *scratch.from).zip(&mut *scratch.to) {
            [*from, *to] = range.map(|bound| bound as f32);
        }
    }

    /// The bound of scores in base 2.
    pub fn cap(&self) -> Option<f32> {
        self.inputs.plan.cap.map(|cap| cap as f32 * LOG2_E)
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

/// Returns the tensor itself if [`View`] can read it, or a copy.
pub fn readable(x: FlexTensor) -> FlexTensor {
    let (shape, strides) = (x.layout().shape(), x.layout().strides());
    let last = shape.num_dims() - 1;
    let is_readable = (strides[last] == 1 || shape[last] == 1) && strides.iter().all(|stride| *stride >= 0);
    if is_readable { x } else { x.to_contiguous() }
}

/// The elements of a [`readable`] tensor of four axes.
#[derive(Clone, Copy)]
pub struct View<'a, T> {
    values: &'a [T],
    start: usize,
    pub shape: [usize; 4],
    strides: [usize; 3],
}

impl<'a, T: Float> View<'a, T> {
    pub fn of(x: &'a FlexTensor) -> Self {
        let (shape, strides) = (x.layout().shape(), x.layout().strides());
        Self {
            values: x.storage(),
            start: x.layout().start_offset(),
            shape: [shape[0], shape[1], shape[2], shape[3]],
            strides: [strides[0], strides[1], strides[2]].map(|stride| stride as usize),
        }
    }

    /// Returns one row, of `size` elements. Batches of 1 are broadcast.
    #[inline(always)]
    pub fn row(&self, row: usize, head: usize, position: usize) -> &'a [T] {
        let row = if self.shape[0] == 1 { 0 } else { row };
        let at = self.start + row * self.strides[0] + head * self.strides[1] + position * self.strides[2];
        &self.values[at..][..self.shape[3]]
    }

    /// Widens `count` rows from `position` into rows of `stride` elements, and fills the rest of `to` with zeros.
    #[inline(always)]
    pub fn widen(&self, [row, head, position]: [usize; 3], count: usize, to: &mut [f32], stride: usize) {
        let size = self.shape[3];
        for (at, to) in to.chunks_exact_mut(stride).enumerate() {
            if at < count {
                let (values, end) = to.split_at_mut(size);
                T::widen(self.row(row, head, position + at), values);
                end.fill(0.0);
            } else {
                to.fill(0.0);
            }
        }
    }
}
