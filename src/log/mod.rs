//! The run's numbers as JSON lines.

mod going_on;

use std::fs::File;
use std::io::{LineWriter, Write};
use std::path::{Path, PathBuf};

use firebrick_datasets::Fingerprint;
use serde::{Deserialize, Serialize};

use crate::report_page::log_line::LogLine;
use crate::step::StepNumbers;
use crate::tensorboard::Writer;
use crate::{Scores, TrainError};

pub(crate) use going_on::{Past, marks};

/// The file.
const LOG: &str = "metrics.jsonl";

/// One evaluation, as the log keeps it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EvaluationNumbers {
    /// Updates made before it.
    pub step: u64,
    /// Mean loss over all supervised items of the validation data.
    pub loss: f64,
    pub items: usize,
    pub seconds: f64,
    /// What the model says of itself besides.
    #[serde(default, skip_serializing_if = "Scores::is_empty")]
    pub scores: Scores,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Line<'a> {
    Train(&'a StepNumbers),
    Valid(&'a EvaluationNumbers),
    Checkpoint(&'a SaveNumbers),
}

/// A save that has ended, as the log keeps it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct SaveNumbers {
    /// Updates made before it.
    pub step: u64,
    /// From its beginning until the checkpoint was there.
    pub seconds: f64,
    /// For which training stood still.
    pub pause_seconds: f64,
    /// Why there is none, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Writes `metrics.jsonl`: a line per step, per evaluation and per save. Numbers that are not finite are
/// `null`. A line is with the system once it is written, so a killed run keeps all its lines.
///
/// TensorBoard's files, in the folder `tensorboard`, have the same numbers.
pub(crate) struct Log {
    file: Option<(PathBuf, LineWriter<File>)>,
    board: Option<Writer>,
    bytes: u64,
    /// Of those bytes.
    sum: blake3::Hasher,
}

/// How far a log was when its run was saved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Mark {
    pub bytes: u64,
    /// Of these bytes.
    pub sum: Option<Fingerprint>,
    /// Updates that its lines are of.
    pub updates: u64,
}

impl Log {
    /// In this folder, or nowhere.
    pub fn new(folder: Option<&Path>) -> Result<Self, TrainError> {
        let Some(folder) = folder else {
            return Ok(Self { file: None, board: None, bytes: 0, sum: blake3::Hasher::new() });
        };
        let path = folder.join(LOG);
        let file = File::create(&path).map_err(|error| TrainError::file(&path, "creating the log", error))?;
        let board = Writer::new(&folder.join("tensorboard"), None)?;
        let file = Some((path, LineWriter::new(file)));
        Ok(Self { file, board: Some(board), bytes: 0, sum: blake3::Hasher::new() })
    }

    /// That of a run which goes on from a checkpoint with this mark, and what its lines tell. `others` are the marks of
    /// all checkpoints of the run.
    pub fn going_on(folder: &Path, mark: &Mark, others: &[Mark]) -> Result<(Self, Past), TrainError> {
        let path = folder.join(LOG);
        let goes_on = going_on::go_on(folder, mark, others);
        let goes_on = goes_on.map_err(|error| TrainError::file(&path, "going on with the log", error))?;
        let going_on::GoingOn { file, bytes, sum, past, board_from, board_lines } = goes_on;
        let mut board = Writer::new(&folder.join("tensorboard"), board_from.checked_sub(1))?;
        board_lines.iter().try_for_each(|line| show(&mut board, line))?;
        Ok((Self { file: Some((path, LineWriter::new(file))), board: Some(board), bytes, sum }, past))
    }

    /// How far it is, after so many updates.
    pub fn mark(&self, updates: u64) -> Mark {
        Mark { bytes: self.bytes, sum: Some((&self.sum).into()), updates }
    }

    /// Hands over to the system what is held back of TensorBoard's file, so that a checkpoint lacks nothing of it.
    pub fn flush(&mut self) -> Result<(), TrainError> {
        Ok(self.board.as_mut().map_or(Ok(()), Writer::flush)?)
    }

    pub fn save(&mut self, numbers: &SaveNumbers) -> Result<(), TrainError> {
        self.write(&Line::Checkpoint(numbers))
    }

    pub fn step(&mut self, numbers: &StepNumbers) -> Result<(), TrainError> {
        self.write(&Line::Train(numbers))
    }

    pub fn evaluation(&mut self, numbers: &EvaluationNumbers) -> Result<(), TrainError> {
        self.write(&Line::Valid(numbers))
    }

    fn write(&mut self, line: &Line) -> Result<(), TrainError> {
        let Some((path, file)) = &mut self.file else {
            return Ok(());
        };
        let failed = |error: std::io::Error| TrainError::file(path.as_path(), "writing the log", error);
        let line = serde_json::to_string(line).map_err(|error| failed(error.into()))? + "\n";
        file.write_all(line.as_bytes()).map_err(failed)?;
        self.bytes += line.len() as u64;
        self.sum.update(line.as_bytes());
        match (&mut self.board, LogLine::parse(line.as_bytes())) {
            (Some(board), Some(line)) => show(board, &line),
            _ => Ok(()),
        }
    }
}

/// Shows a line in TensorBoard.
fn show(board: &mut Writer, line: &LogLine) -> Result<(), TrainError> {
    match line {
        LogLine::Train(line) => board.train(line.step, &line.board_values())?,
        LogLine::Valid(line) => board.valid(line.step, &line.board_values())?,
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
            |step| EvaluationNumbers { step, loss: 0.5, items: 1, seconds: 0.0, scores: Scores::new() };
        let mut log = Log::new(Some(folder.path())).unwrap();
        log.evaluation(&numbers(1)).unwrap();
        let mark = log.mark(1);
        log.evaluation(&numbers(2)).unwrap();
        drop(log);
        let (mut log, _) = Log::going_on(folder.path(), &mark, &[mark]).unwrap();
        assert_eq!(log.mark(1), mark);
        log.evaluation(&numbers(3)).unwrap();
        let text = std::fs::read_to_string(folder.path().join("metrics.jsonl")).unwrap();
        assert_eq!(text.len() as u64, log.mark(3).bytes);
        let steps: Vec<_> = text
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["step"].clone())
            .collect();
        assert_eq!(steps, [1, 3]);
    }
}
