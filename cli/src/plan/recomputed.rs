//! The memory of a pass that recomputes some of its blocks.
//!
//! The traced model has few blocks. A list that selects blocks by their number or their bytes is therefore evaluated
//! for all blocks of the model, from one pass that recomputes no block and one that recomputes all.

/// Bytes that a pass uses beyond those in use before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Traced {
    /// Bytes counted as in [`Report::activation_bytes`](firebrick::Report::activation_bytes).
    pub activations: u64,
    /// The same, with the gradients of recomputed segments.
    pub most: u64,
}

/// The memory of a pass as a linear function of its number of blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Line {
    /// Bytes without blocks.
    pub base: f64,
    /// Bytes of each block.
    pub each: f64,
}

impl Line {
    /// Fits the line to passes of `blocks` blocks and of one more.
    pub fn through(few: u64, more: u64, blocks: usize) -> Self {
        let each = more as f64 - few as f64;
        Self { base: few as f64 - each * blocks as f64, each }
    }

    pub fn at(&self, blocks: usize) -> f64 {
        self.base + self.each * blocks as f64
    }
}

/// The memory of a pass by its number of blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lines {
    pub activations: Line,
    pub most: Line,
}

impl Lines {
    /// Fits the lines to passes of `blocks` blocks and of one more.
    pub fn through(few: Traced, more: Traced, blocks: usize) -> Self {
        Self {
            activations: Line::through(few.activations, more.activations, blocks),
            most: Line::through(few.most, more.most, blocks),
        }
    }

    pub fn at(&self, blocks: usize) -> Traced {
        Traced {
            activations: self.activations.at(blocks).max(0.0) as u64,
            most: self.most.at(blocks).max(0.0) as u64,
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
pub(super) fn mixed(again: &[bool], plain: &Lines, every: &Lines) -> Traced {
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
    Traced { activations: activations as u64, most: (activations + share * gradients) as u64 }
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
