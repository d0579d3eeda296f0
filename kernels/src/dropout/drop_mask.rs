//! The mask of one dropout, computed where it is read.

use rayon::prelude::*;

use super::mask::{Key, Places};

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
        // Ragged rows have different numbers of lines, and the same coordinates along them.
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
