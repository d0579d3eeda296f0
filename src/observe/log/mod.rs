//! The log of a run's numbers as JSON lines.

mod going_on;

use std::fs::File;
use std::path::Path;

use firebrick_datasets::Fingerprint;

use crate::TrainError;
use crate::files::appended::Appended;
use crate::files::writes::{FailedWrites, Writes};
use crate::observe::log_line::LogLine;
use crate::observe::numbers::{EvaluationNumbers, SaveNumbers, StepNumbers};
use crate::observe::tensorboard::Writer;

pub(crate) use going_on::{Past, marks};

/// The log file in the output folder.
pub(crate) const LOG: &str = "metrics.jsonl";
/// The folder of TensorBoard's files, in the output folder.
const BOARD: &str = "tensorboard";

/// Writes `metrics.jsonl`: a line per step, evaluation and save. Numbers that are not finite are `null`. Each line is
/// passed to the operating system at once, so a killed run keeps all its lines. Lines that cannot be written, as on a
/// full disk, are kept and retried with the next line.
///
/// TensorBoard's files, in the folder `tensorboard`, have the same numbers.
pub(crate) struct Log {
    files: Option<Files>,
    bytes: u64,
    /// The checksum of those bytes.
    sum: blake3::Hasher,
}

/// The open files and the state of their writes.
struct Files {
    lines: Appended,
    line_writes: Writes,
    board: Writer,
    board_writes: Writes,
}

/// The position in a log at the time of a save.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Mark {
    pub bytes: u64,
    /// The checksum of these bytes.
    pub sum: Option<Fingerprint>,
    /// The number of updates that its lines cover.
    pub updates: u64,
}

impl Log {
    /// Creates a log in this folder, or none without a folder. With `tells`, failed writes are reported on standard
    /// error.
    ///
    /// # Errors
    ///
    /// A file cannot be created. Once both exist, no write error ends the run.
    pub fn new(folder: Option<&Path>, tells: bool) -> Result<Self, TrainError> {
        let Some(folder) = folder else {
            return Ok(Self { files: None, bytes: 0, sum: blake3::Hasher::new() });
        };
        let path = folder.join(LOG);
        let file = File::create(&path).map_err(|error| TrainError::file(&path, "creating the log", error))?;
        let files = Files::new(file, Writer::new(&folder.join(BOARD), None)?, tells);
        Ok(Self { files: Some(files), bytes: 0, sum: blake3::Hasher::new() })
    }

    /// Continues the log of a run that resumes from a checkpoint with this mark, and returns the history in its
    /// lines. `others` are the marks of all checkpoints of the run.
    ///
    /// # Errors
    ///
    /// The errors of [`new`](Self::new), or the log cannot be read.
    pub fn going_on(
        folder: &Path,
        mark: &Mark,
        others: &[Mark],
        tells: bool,
    ) -> Result<(Self, Past), TrainError> {
        let path = folder.join(LOG);
        let goes_on = going_on::go_on(folder, mark, others);
        let goes_on = goes_on.map_err(|error| TrainError::file(&path, "going on with the log", error))?;
        let going_on::GoingOn { file, bytes, sum, past, board_from, board_lines } = goes_on;
        let mut board = Writer::new(&folder.join(BOARD), board_from.checked_sub(1))?;
        board_lines.iter().try_for_each(|line| show(&mut board, line))?;
        Ok((Self { files: Some(Files::new(file, board, tells)), bytes, sum }, past))
    }

    /// The position after this many updates, including lines that are not written yet.
    pub fn mark(&self, updates: u64) -> Mark {
        Mark { bytes: self.bytes, sum: Some((&self.sum).into()), updates }
    }

    /// Writes everything held back: before a checkpoint, so that the log covers it, and at the end.
    pub fn flush(&mut self) {
        if let Some(files) = &mut self.files {
            files.line_writes.note(files.lines.write_out());
            files.board_writes.note(files.board.flush());
        }
    }

    pub fn save(&mut self, numbers: &SaveNumbers) {
        self.write(LogLine::Checkpoint(numbers.clone()));
    }

    pub fn step(&mut self, numbers: &StepNumbers) {
        self.write(LogLine::Train(Box::new(numbers.clone())));
    }

    pub fn evaluation(&mut self, numbers: &EvaluationNumbers) {
        self.write(LogLine::Valid(numbers.clone()));
    }

    /// The files for which a write has failed.
    pub fn failed(&self) -> impl Iterator<Item = FailedWrites> {
        let writes = self.files.iter().flat_map(|files| [&files.line_writes, &files.board_writes]);
        writes.filter_map(Writes::failed)
    }

    fn write(&mut self, line: LogLine) {
        let Some(Files { lines, line_writes, board, board_writes }) = &mut self.files else { return };
        let text = match serde_json::to_string(&line) {
            Ok(text) => text + "\n",
            Err(error) => return line_writes.note(Err(error)),
        };
        self.bytes += text.len() as u64;
        self.sum.update(text.as_bytes());
        lines.add(text.as_bytes());
        line_writes.note(lines.write_out());
        let shown = show(board, &line);
        // Events that are held back are not written yet.
        if shown.is_err() || !board.holds_back() {
            board_writes.note(shown);
        }
    }
}

impl Files {
    fn new(lines: File, board: Writer, tells: bool) -> Self {
        Self {
            lines: Appended::new(lines),
            line_writes: Writes::of(LOG, tells),
            board,
            board_writes: Writes::of(BOARD, tells),
        }
    }
}

/// Writes a line to TensorBoard.
fn show(board: &mut Writer, line: &LogLine) -> Result<(), TrainError> {
    match line {
        LogLine::Train(line) => board.step(line)?,
        LogLine::Valid(line) => board.evaluated(line)?,
        LogLine::Checkpoint(_) => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_goes_on_keeps_the_lines_up_to_the_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        let numbers =
            |step| EvaluationNumbers { step, loss: 0.5, items: 1, seconds: 0.0, scores: Default::default() };
        let mut log = Log::new(Some(folder.path()), false).unwrap();
        log.evaluation(&numbers(1));
        let mark = log.mark(1);
        log.evaluation(&numbers(2));
        drop(log);
        let (mut log, _) = Log::going_on(folder.path(), &mark, &[mark], false).unwrap();
        assert_eq!(log.mark(1), mark);
        log.evaluation(&numbers(3));
        let text = std::fs::read_to_string(folder.path().join("metrics.jsonl")).unwrap();
        assert_eq!(text.len() as u64, log.mark(3).bytes);
        let steps: Vec<_> = text
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["step"].clone())
            .collect();
        assert_eq!(steps, [1, 3]);
    }
}
