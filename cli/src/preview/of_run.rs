//! The data of a run, looked at.

use super::{Names, Preview};
use crate::run::{DataRun, Loaded, RunError};

impl DataRun {
    /// Looks at the micro-batches of the first epoch, 5,000 at most, and keeps the first `batches` of them, `rows` rows of
    /// each, to be drawn.
    ///
    /// # Errors
    ///
    /// The first error of the data.
    pub fn preview(&self, loaded: &Loaded, batches: usize, rows: usize) -> Result<Preview, RunError> {
        let names = Names { tokenizer: loaded.tokenizer.clone(), labels: loaded.labels.clone() };
        Ok(loaded.data.preview(self.micro_batches(), &names, batches, rows)?)
    }
}
