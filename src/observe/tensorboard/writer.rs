//! Writes a run's numbers for TensorBoard.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{TensorBoard, TensorBoardError};
use crate::FailedWrites;
use crate::files::writes::Writes;
use crate::observe::log::LogLine;
use crate::observe::numbers::{EvaluationNumbers, StepNumbers};
use crate::observe::observer::Observer;
use crate::observe::readings::scalars;

/// The folder of the files, in the output folder.
pub(crate) const FOLDER: &str = "tensorboard";

/// The time after which steps that are held back are written.
const HELD: Duration = Duration::from_secs(5);

/// Writes steps under `train/` and evaluations under `valid/`. Steps are held back for up to five seconds; they are
/// written with the next evaluation, with the first step after that time, before a checkpoint, and on drop.
#[derive(Debug)]
pub(crate) struct Writer {
    board: TensorBoard,
    writes: Writes,
    flushed: Instant,
}

impl Writer {
    /// Creates a writer into an output folder. With `tells`, failed writes are reported on standard error.
    ///
    /// # Errors
    ///
    /// The folder or the file cannot be created. Once it exists, no write error ends the run.
    pub fn new(output: &Path, tells: bool) -> Result<Self, TensorBoardError> {
        Ok(Self::of(TensorBoard::create(&output.join(FOLDER))?, tells))
    }

    /// Continues a run: the files that are there are invalid from a step on, and these lines take their place.
    ///
    /// # Errors
    ///
    /// The errors of [`new`](Self::new).
    pub fn resume(
        output: &Path,
        from: u64,
        lines: &[LogLine],
        tells: bool,
    ) -> Result<Self, TensorBoardError> {
        let folder = output.join(FOLDER);
        let board = match from.checked_sub(1) {
            Some(updates) => TensorBoard::resume(&folder, updates)?,
            None => TensorBoard::create(&folder)?,
        };
        let mut writer = Self::of(board, tells);
        for line in lines {
            match line {
                LogLine::Train(numbers) => writer.step(numbers),
                LogLine::Valid(numbers) => writer.evaluated(numbers),
                LogLine::Checkpoint(_) => {}
            }
        }
        Ok(writer)
    }

    fn of(board: TensorBoard, tells: bool) -> Self {
        Self { board, writes: Writes::of(FOLDER, tells), flushed: Instant::now() }
    }

    fn write<'a>(&mut self, split: &str, step: u64, values: impl Iterator<Item = (&'a str, f64)>) {
        let tagged: Vec<_> = values.map(|(name, value)| (format!("{split}/{name}"), value)).collect();
        let written = self.board.scalars(step, &tagged);
        // Events that are held back are not written yet.
        if written.is_err() || !self.board.holds_back() {
            self.writes.note(written);
        }
    }
}

impl Observer for Writer {
    fn step(&mut self, numbers: &StepNumbers) {
        self.write("train", numbers.step, scalars(numbers));
        if self.flushed.elapsed() >= HELD {
            self.flush();
        }
    }

    fn evaluated(&mut self, numbers: &EvaluationNumbers) {
        let scores = numbers.scores.iter().map(|(name, score)| (name.as_str(), *score));
        self.write("valid", numbers.step, std::iter::once(("loss", numbers.loss)).chain(scores));
        self.flush();
    }

    /// Writes the events that are held back. Events that cannot be written stay held back.
    fn flush(&mut self) {
        self.flushed = Instant::now();
        self.writes.note(self.board.flush());
    }

    fn failed_writes(&self) -> Vec<FailedWrites> {
        self.writes.failed().into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_evaluations_have_their_own_tags() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = Writer::resume(folder.path(), 5, &[], false).unwrap();
        writer.step(&StepNumbers { step: 5, loss: 1.5, ..StepNumbers::default() });
        let scores = [("f1".to_string(), 0.5)].into();
        writer.evaluated(&EvaluationNumbers { step: 5, loss: 2.5, scores, ..Default::default() });
        let file = std::fs::read(writer.board.path()).unwrap();
        let holds = |tag: &[u8]| file.windows(tag.len()).any(|bytes| bytes == tag);
        for tag in ["brain.Event:2", "train/loss", "train/learning_rate", "valid/loss", "valid/f1"] {
            assert!(holds(tag.as_bytes()), "{tag}");
        }
    }
}
