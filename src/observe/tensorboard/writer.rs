//! Writes a run's numbers for TensorBoard, as the log passes them on.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{TensorBoard, TensorBoardError};

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

    /// Adds numbers of a step, by name.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn train(&mut self, step: u64, values: &[(&str, f64)]) -> Result<(), TensorBoardError> {
        self.write("train", step, values)?;
        match self.flushed.elapsed() >= HELD {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// Adds numbers of an evaluation, by name.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn valid(&mut self, step: u64, values: &[(&str, f64)]) -> Result<(), TensorBoardError> {
        self.write("valid", step, values)?;
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

    fn write(&mut self, split: &str, step: u64, values: &[(&str, f64)]) -> Result<(), TensorBoardError> {
        let tagged: Vec<_> = values.iter().map(|(name, value)| (format!("{split}/{name}"), *value)).collect();
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
        writer.train(5, &[("loss", 1.5), ("learning_rate", 0.1)]).unwrap();
        writer.valid(5, &[("loss", 2.5)]).unwrap();
        let file = std::fs::read(writer.board.path()).unwrap();
        let holds = |tag: &[u8]| file.windows(tag.len()).any(|bytes| bytes == tag);
        for tag in ["brain.Event:2", "train/loss", "train/learning_rate", "valid/loss"] {
            assert!(holds(tag.as_bytes()), "{tag}");
        }
    }
}
