//! Writes a run's numbers for TensorBoard, as the log passes them on.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{TensorBoard, TensorBoardError};
use crate::observe::numbers::{EvaluationNumbers, StepNumbers};

/// The time after which steps that are held back are written.
const HELD: Duration = Duration::from_secs(5);

/// Writes steps under `train/` and evaluations under `valid/`. Steps are held back for up to five seconds; they are
/// written with the next evaluation, with the first step after that time, and on drop.
#[derive(Debug)]
pub struct Writer {
    board: TensorBoard,
    flushed: Instant,
}

impl Writer {
    /// Creates a writer into this folder. For a resumed run, `resumed` is the number of updates already made.
    ///
    /// # Errors
    ///
    /// The folder or the file cannot be created.
    pub fn new(folder: &Path, resumed: Option<u64>) -> Result<Self, TensorBoardError> {
        let board = match resumed {
            Some(updates) => TensorBoard::resume(folder, updates)?,
            None => TensorBoard::create(folder)?,
        };
        Ok(Self { board, flushed: Instant::now() })
    }

    /// Adds the numbers of a step.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn step(&mut self, numbers: &StepNumbers) -> Result<(), TensorBoardError> {
        let values = [
            ("tokens_per_second", Some(numbers.tokens_per_second)),
            ("skipped_steps", Some(numbers.skipped_steps as f64)),
            ("memory_bytes", Some(numbers.memory_bytes as f64)),
            ("peak_bytes", Some(numbers.peak_bytes as f64)),
            ("loss_scale", numbers.loss_scale),
            // A skipped step has no rate, and its loss would only distort the curve.
            ("loss", numbers.applied(numbers.loss)),
            ("learning_rate", numbers.applied(numbers.learning_rate)),
            ("gradient_norm", numbers.applied(numbers.gradient_norm)),
        ];
        self.write(
            "train",
            numbers.step,
            values.into_iter().filter_map(|(name, value)| Some((name, value?))),
        )?;
        match self.flushed.elapsed() >= HELD {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// Adds the numbers of an evaluation.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn evaluated(&mut self, numbers: &EvaluationNumbers) -> Result<(), TensorBoardError> {
        let scores = numbers.scores.iter().map(|(name, score)| (name.as_str(), *score));
        self.write("valid", numbers.step, [("loss", numbers.loss)].into_iter().chain(scores))?;
        self.flush()
    }

    /// Adds a text, such as the run file or a sample.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn text(&mut self, tag: &str, step: u64, text: &str) -> Result<(), TensorBoardError> {
        self.board.text(tag, step, text)?;
        self.flush()
    }

    fn write<'a>(
        &mut self,
        split: &str,
        step: u64,
        values: impl Iterator<Item = (&'a str, f64)>,
    ) -> Result<(), TensorBoardError> {
        let tagged: Vec<_> = values.map(|(name, value)| (format!("{split}/{name}"), value)).collect();
        self.board.scalars(step, &tagged)
    }

    /// Whether some events are still held back.
    pub fn holds_back(&self) -> bool {
        self.board.holds_back()
    }

    /// Writes the events that are held back. Events that cannot be written stay held back.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn flush(&mut self) -> Result<(), TensorBoardError> {
        self.flushed = Instant::now();
        self.board.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_evaluations_have_their_own_tags() {
        let folder = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(folder.path(), Some(4)).unwrap();
        writer.step(&StepNumbers { step: 5, loss: 1.5, ..StepNumbers::default() }).unwrap();
        let scores = [("f1".to_string(), 0.5)].into();
        writer.evaluated(&EvaluationNumbers { step: 5, loss: 2.5, scores, ..Default::default() }).unwrap();
        let file = std::fs::read(writer.board.path()).unwrap();
        let holds = |tag: &[u8]| file.windows(tag.len()).any(|bytes| bytes == tag);
        for tag in ["brain.Event:2", "train/loss", "train/learning_rate", "valid/loss", "valid/f1"] {
            assert!(holds(tag.as_bytes()), "{tag}");
        }
    }
}
