//! The memory of a pass that recomputes some of its blocks.
//!
//! The traced model has few blocks. A list that selects blocks by their number or their bytes is therefore evaluated
//! for all blocks of the model, from one pass that recomputes no block and one that recomputes all.

use firebrick::memory::PassPeak;

/// The memory of a pass as a linear function of its number of blocks, or of rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Line {
    /// Bytes without any.
    pub base: f64,
    /// Bytes of each.
    pub each: f64,
}

impl Line {
    /// Fits the line to a pass of the first of these numbers, and to one of the second.
    pub fn through(few: usize, more: usize, [of_few, of_more]: [usize; 2]) -> Self {
        let each = (more as f64 - few as f64) / (of_more - of_few) as f64;
        Self { base: few as f64 - each * of_few as f64, each }
    }

    pub fn at(&self, number: usize) -> f64 {
        self.base + self.each * number as f64
    }
}

/// The memory of a pass by its number of blocks, or of rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines {
    pub activations: Line,
    pub most: Line,
}

impl Lines {
    /// Fits the lines to a pass of the first of these numbers, and to one of the second.
    pub fn through(few: PassPeak, more: PassPeak, numbers: [usize; 2]) -> Self {
        Self {
            activations: Line::through(few.activations, more.activations, numbers),
            most: Line::through(few.most, more.most, numbers),
        }
    }

    pub fn at(&self, number: usize) -> PassPeak {
        PassPeak {
            activations: self.activations.at(number).max(0.0) as usize,
            most: self.most.at(number).max(0.0) as usize,
        }
    }

    /// Rescales the lines from units of the trace that contain `blocks` blocks each to single blocks.
    pub fn of_each(&self, blocks: f64) -> Self {
        let of_each = |line: Line| Line { each: line.each / blocks, ..line };
        Self { activations: of_each(self.activations), most: of_each(self.most) }
    }
}

/// Returns the memory of a pass that recomputes these blocks. The peak is either at the end of the forward pass, with
/// everything that was kept, or while the last of these blocks is recomputed, with what the blocks before it keep.
pub(super) fn mixed(again: &[bool], plain: &Lines, every: &Lines) -> PassPeak {
    let Some(last) = again.iter().rposition(|is_again| *is_again) else { return plain.at(again.len()) };
    let (kept, input) = (plain.activations.each, every.activations.each);
    let held =
        |blocks: &[bool]| -> f64 { blocks.iter().map(|is_again| if *is_again { input } else { kept }).sum() };
    let at_the_end = plain.activations.base + held(again);
    let run_again = every.activations.base + held(&again[..=last]);
    let activations = at_the_end.max(run_again);
    // Recomputed blocks leave their gradients before the pass has ended.
    let gradients = (every.most.at(again.len()) - every.activations.at(again.len())).max(0.0);
    let share = again.iter().filter(|is_again| **is_again).count() as f64 / again.len() as f64;
    PassPeak { activations: activations as usize, most: (activations + share * gradients) as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A block keeps 10 bytes, or 1 if it is recomputed; outside of blocks there are 5.
    fn lines() -> (Lines, Lines) {
        let line = |base: f64, each: f64| Line { base, each };
        let plain = Lines { activations: line(5.0, 10.0), most: line(5.0, 10.0) };
        (plain, Lines { activations: line(14.0, 1.0), most: line(14.0, 3.0) })
    }

    #[test]
    fn what_a_pass_takes_is_between_the_two() {
        let (plain, every) = lines();
        let taken = |again: [bool; 4]| mixed(&again, &plain, &every);
        assert_eq!(taken([false; 4]), plain.at(4));
        assert_eq!(taken([true; 4]), every.at(4));
        // The last block is recomputed on top of all others.
        assert_eq!(taken([false, false, false, true]).activations, 14 + 30 + 1);
        // The other blocks have been freed by then.
        assert_eq!(taken([true, false, false, false]).activations, 5 + 1 + 30);
        assert_eq!(taken([true, false, false, false]).most, 36 + 8 / 4);
    }
}
