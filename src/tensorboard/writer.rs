//! The numbers of a run, as its log hands them over.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{TensorBoard, TensorBoardError};

/// Time after which steps that are held back are handed over to the system.
const HELD: Duration = Duration::from_secs(5);

/// Writes steps below `train/` and evaluations below `valid/`. What is at most five seconds old may be held back;
/// it is handed over with the next evaluation, with the next step after that time, and when this is dropped.
#[derive(Debug)]
pub struct Writer {
    board: TensorBoard,
    flushed: Instant,
}

impl Writer {
    /// Into this folder. `resumed` are the updates that a run which goes on had made.
    ///
    /// # Errors
    ///
    /// The folder or the file cannot be made.
    pub fn new(folder: &Path, resumed: Option<u64>) -> Result<Self, TensorBoardError> {
        let board = match resumed {
            Some(updates) => TensorBoard::resume(folder, updates)?,
            None => TensorBoard::create(folder)?,
        };
        Ok(Self { board, flushed: Instant::now() })
    }

    /// Numbers of a step, by name.
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

    /// Numbers of an evaluation, by name.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn valid(&mut self, step: u64, values: &[(&str, f64)]) -> Result<(), TensorBoardError> {
        self.write("valid", step, values)?;
        self.flush()
    }

    /// A text, such as the run file or a sample.
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

    /// Hands over to the system what is held back.
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
