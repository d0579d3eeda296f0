//! What tokens read in blocks with and without a window.

use firebrick_kernels::Reads;

/// What each token reads among all tokens, and within a window.
pub(super) struct Ranges {
    all: Reads,
    /// The ranges within the last requested window; all blocks with a window have the same ones.
    windowed: Option<(usize, Reads)>,
}

impl Ranges {
    /// The ranges of a pass, and none within a window yet.
    pub fn of(all: Reads) -> Self {
        Self { all, windowed: None }
    }

    /// Leaves out tokens that are `window` or more columns before the token that reads. The tokens of a sample stand
    /// side by side, so the distance in columns is the distance in positions.
    pub fn within(&mut self, window: Option<usize>) -> Reads {
        let [_, columns] = self.all.longest();
        let Some(window) = window.filter(|window| *window < columns) else { return self.all.clone() };
        if let Some((_, reads)) = self.windowed.as_ref().filter(|(known, _)| *known == window) {
            return reads.clone();
        }
        let reads = self.all.within(window);
        self.windowed = Some((window, reads.clone()));
        reads
    }
}
