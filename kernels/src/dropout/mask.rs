//! The dropout mask: a hash of each element's position.
//!
//! A row of the batch has a key of 64 bits, two words of 32. Each axis but the last mixes its coordinate into both
//! words; the last needs one more round for each element, which is dropped if the word is below p·2³². The words have
//! 32 bits because WGSL has no wider integers.

use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};
use rayon::prelude::*;

use super::Samples;
use crate::Draws;

/// A word of 32 bits, or a tensor of them: the hash is written once for both.
pub(crate) trait Word: Clone {
    fn plus(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    fn times(self, factor: u32) -> Self;
    /// Shifts in zeros from above.
    fn shifted_right(self, bits: u32) -> Self;
}

impl Word for u32 {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        self ^ other
    }

    #[inline(always)]
    fn times(self, factor: u32) -> Self {
        self.wrapping_mul(factor)
    }

    #[inline(always)]
    fn shifted_right(self, bits: u32) -> Self {
        self >> bits
    }
}

/// An integer tensor of dtype u32; shapes broadcast.
impl<const D: usize> Word for Tensor<D, Int> {
    fn plus(self, other: Self) -> Self {
        self + other
    }

    fn xor(self, other: Self) -> Self {
        self.bitwise_xor(other)
    }

    fn times(self, factor: u32) -> Self {
        self.mul_scalar(factor)
    }

    fn shifted_right(self, bits: u32) -> Self {
        self.bitwise_right_shift_scalar(bits)
    }
}

/// Two rounds of multiply and xor-shift, `lowbias32` (Wellons, 2018), with `key` mixed in between. Omits the last
/// xor-shift, which would change only the low half.
#[inline(always)]
fn hash<W: Word>(x: W, key: W) -> W {
    let x = x.clone().xor(x.shifted_right(16)).times(0x7feb_352d).xor(key);
    x.clone().xor(x.shifted_right(15)).times(0x846c_a68b)
}

#[inline(always)]
fn fold<W: Word>(x: W) -> W {
    x.clone().xor(x.shifted_right(16))
}

/// The state of a position after mixing in the coordinates along its first axes. It has two words, because among a
/// hundred thousand single words some would be equal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key<W>(pub W, pub W);

impl<W: Word> Key<W> {
    /// Mixes in a step along the next axis. The step enters the two words differently, so equal words do not stay
    /// equal.
    #[inline(always)]
    pub(crate) fn enter(self, step: W) -> Self {
        let Self(a, b) = self;
        let first = hash(a.clone().plus(step.clone()), b.clone());
        Self(fold(first), fold(hash(b.xor(step), a)))
    }

    /// Returns the word of the element at this step along the last axis.
    #[inline(always)]
    pub fn element(self, step: W) -> W {
        hash(step.plus(self.0), self.1)
    }
}

/// One axis after the row axis.
pub struct Axis<'a> {
    pub length: usize,
    /// The first coordinate, if they do not count from the samples' starts.
    pub from: usize,
    /// Where the samples stand, if coordinates count from their starts.
    pub samples: Option<&'a Samples>,
}

impl Axis<'_> {
    /// Returns the coordinates along the axis in one row, spread over all 32 bits. Coordinates before the start of a
    /// row's sample are negative, which is equally valid.
    ///
    /// Those of a share of positions are of the whole row.
    fn steps(&self, row: usize) -> impl Iterator<Item = u32> {
        let (samples, length) = match self.samples {
            Some(Samples::Share { of, shape, .. }) => (Some(&**of), shape[1]),
            samples => (samples, self.length),
        };
        let (start, length) = match samples {
            None | Some(Samples::Columns | Samples::Share { .. }) => (0, length),
            Some(Samples::Starting(starts) | Samples::Selected { starts, .. }) => (starts[row], length),
            Some(Samples::Ragged(rows)) => (0, rows.row(row).len()),
        };
        let column = move |at: usize| samples.map_or(self.from + at, |samples| samples.column(at));
        (0..length).map(move |at| spread(column(at).wrapping_sub(start)))
    }

    /// Returns whether all rows have the same coordinates.
    fn is_one_for_all(&self) -> bool {
        matches!(self.samples, None | Some(Samples::Columns))
    }

    /// Returns whether the rows stand one after the other in a single one.
    fn is_in_one_row(&self) -> bool {
        matches!(self.samples, Some(Samples::Ragged(_) | Samples::Share { .. }))
    }
}

/// The positions of a tensor's elements: keys of its rows, and at least one further axis. A position in a sample does
/// not depend on the padding of its row. If rows are ragged, or a share of positions, the first axis holds all of them, and
/// there are at least two.
pub struct Places<'a> {
    pub keys: Vec<u64>,
    pub axes: Vec<Axis<'a>>,
}

impl<'a> Places<'a> {
    pub fn new(draws: &Draws, site: u64, rows: usize, axes: Vec<Axis<'a>>) -> Self {
        Self { keys: (0..rows).map(|row| draws.of_row(site, row)).collect(), axes }
    }

    /// Returns the key of each line along the last axis, and the coordinates along it: once if all rows have the same,
    /// otherwise those of each row.
    pub fn lines(&self) -> (Vec<Key<u32>>, Vec<Vec<u32>>) {
        let Some((last, middle)) = self.axes.split_last() else { return Default::default() };
        let keys = self.all_keys(middle);
        let rows = if last.is_one_for_all() { 1 } else { self.keys.len() };
        (keys, (0..rows).map(|row| last.steps(row).collect()).collect())
    }

    /// Returns the keys of all lines along the last axis, after these axes.
    fn all_keys(&self, middle: &[Axis]) -> Vec<Key<u32>> {
        let keys = (0..self.keys.len()).flat_map(|row| self.keys_of(row, middle));
        let Some(Samples::Share { own, .. }) = middle.first().and_then(|axis| axis.samples) else {
            return keys.collect();
        };
        let mut own_keys: Vec<_> = keys.skip(own.start).take(own.len()).collect();
        // What belongs to no sample may have any mask.
        own_keys.resize(own.len(), Key(0, 0));
        own_keys
    }

    /// Returns the keys of one row's lines along the last axis.
    fn keys_of(&self, row: usize, middle: &[Axis]) -> Vec<Key<u32>> {
        let [a, b] = words(self.keys[row]);
        middle.iter().fold(vec![Key(a, b)], |keys, axis| {
            let steps: Vec<u32> = axis.steps(row).collect();
            keys.iter().flat_map(|key| steps.iter().map(|&step| key.enter(step))).collect()
        })
    }

    /// Computes the same mask on the device. The host only sends keys, of the rows or of the positions in ragged rows, and
    /// the coordinates of each further axis.
    pub fn on_device<const D: usize>(&self, threshold: u32, device: &Device) -> Tensor<D, Bool> {
        let tensor = |values: Vec<u32>, shape: [usize; D]| -> Tensor<D, Int> {
            Tensor::from_data(TensorData::new(values, shape), (device, DType::U32))
        };
        let rows = self.keys.len();
        // The axes up to this one have entered the keys.
        let entered = usize::from(self.axes.first().is_some_and(Axis::is_in_one_row));
        let keys = self.all_keys(&self.axes[..entered]);
        let mut shape = [1; D];
        shape[entered] = keys.len();
        let key = Key(
            tensor(keys.iter().map(|key| key.0).collect(), shape),
            tensor(keys.iter().map(|key| key.1).collect(), shape),
        );
        let steps = |at: usize| {
            let axis = &self.axes[at];
            let mut shape = [1; D];
            shape[0] = if axis.is_one_for_all() { 1 } else { rows };
            shape[at + 1] = axis.length;
            tensor((0..shape[0]).flat_map(|row| axis.steps(row)).collect(), shape)
        };
        let last = self.axes.len() - 1;
        let key = (entered..last).fold(key, |key, at| key.enter(steps(at)));
        key.element(steps(last)).lower_scalar(threshold)
    }
}

/// Spreads a coordinate over all 32 bits, with the golden ratio, as in Weyl's sequence.
#[inline(always)]
pub(crate) fn spread(at: usize) -> u32 {
    (at as u32).wrapping_mul(0x9e37_79b9)
}

/// The words of a row's key.
pub(crate) fn words(key: u64) -> [u32; 2] {
    [key as u32, (key >> 32) as u32]
}

/// Elements that are computed at a time.
const BLOCK: usize = 512;

/// The least elements per task.
const TASK: usize = 1 << 14;

/// Which elements of a tensor a dropout drops. It holds a key for each line along the last axis (8 bytes) and the
/// coordinates along that axis (4 bytes), once for all rows or for each row of the batch, from which a word of each
/// element follows.
#[derive(Debug)]
pub struct DropMask {
    keys: Vec<Key<u32>>,
    steps: Vec<Vec<u32>>,
    /// Lines of one row.
    lines: usize,
    /// Elements of a line.
    length: usize,
    threshold: u32,
    scale: f32,
}

/// What a kernel computes the mask from.
#[cfg(feature = "cube")]
pub(super) struct OfKernel {
    /// Two words of each line's key, then the coordinates along a line, once or for each row of the batch.
    pub words: Vec<u32>,
    pub lines: usize,
    /// How often the coordinates are there.
    pub sets: usize,
    /// Lines of one row.
    pub each: usize,
    /// Elements of a line.
    pub length: usize,
    pub threshold: u32,
    pub scale: f32,
}

impl DropMask {
    /// Drops elements whose word is below `threshold`, and multiplies the others by `scale`.
    pub(super) fn new(places: &Places, threshold: u32, scale: f64) -> Self {
        let (keys, steps) = places.lines();
        // Rows in one have different numbers of lines, and the same coordinates along them.
        let lines = (keys.len() / places.keys.len().max(1)).max(1);
        let length = steps.first().map_or(0, Vec::len);
        Self { keys, steps, lines, length, threshold, scale: scale as f32 }
    }

    /// Returns what a kernel computes the mask from.
    #[cfg(feature = "cube")]
    pub(super) fn of_kernel(&self) -> OfKernel {
        let Self { keys, steps, lines: each, length, threshold, scale } = self;
        let words = keys.iter().flat_map(|key| [key.0, key.1]).chain(steps.iter().flatten().copied());
        OfKernel {
            words: words.collect(),
            lines: keys.len(),
            sets: steps.len(),
            each: *each,
            length: *length,
            threshold: *threshold,
            scale: *scale,
        }
    }

    /// Computes the mask of all elements on the host's threads: true if an element is dropped.
    pub(super) fn dropped(&self) -> Vec<bool> {
        let mut mask = vec![false; self.keys.len() * self.length];
        if mask.is_empty() {
            return mask;
        }
        let tasks = mask.par_chunks_mut(self.length).with_min_len(TASK.div_ceil(self.length));
        tasks.enumerate().for_each(|(line, mask)| {
            for (dropped, &step) in mask.iter_mut().zip(self.steps_of(line)) {
                *dropped = self.keys[line].element(step) < self.threshold;
            }
        });
        mask
    }

    /// Writes the scaled elements of `x`, which start at the element `at` of the tensor, or 0 for those that are dropped.
    #[inline(always)]
    pub(crate) fn drop_from(&self, at: usize, x: &[f32], to: &mut [f32]) {
        // Locals, so that the compiler knows that writing an element changes none of what it reads.
        let mut kept = [0.0; BLOCK];
        let (threshold, scale) = (self.threshold, self.scale);
        let (mut at, mut from) = (at, 0);
        while from < x.len() {
            let (line, col) = (at / self.length, at % self.length);
            let key = self.keys[line];
            let run = (self.length - col).min(x.len() - from).min(BLOCK);
            let steps = &self.steps_of(line)[col..][..run];
            let x = &x[from..][..run];
            for ((kept, x), &step) in kept[..run].iter_mut().zip(x).zip(steps) {
                // Chosen, not multiplied by 0: a dropped infinity becomes 0 too.
                let scaled = x * scale;
                *kept = if key.element(step) < threshold { 0.0 } else { scaled };
            }
            to[from..][..run].copy_from_slice(&kept[..run]);
            (at, from) = (at + run, from + run);
        }
    }

    #[inline(always)]
    fn steps_of(&self, line: usize) -> &[u32] {
        &self.steps[(line / self.lines).min(self.steps.len() - 1)]
    }
}

#[cfg(test)]
#[path = "mask_tests.rs"]
mod tests;
