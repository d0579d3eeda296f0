//! The run's numbers as JSON lines.

use std::fs::{File, OpenOptions};
use std::io::{LineWriter, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::step::StepNumbers;
use crate::tensorboard::Writer;
use crate::{Scores, TrainError};

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
}

/// What is kept of the log of a run that goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    /// Those after them are of steps that are made again.
    pub bytes: u64,
    /// Updates that these lines are of.
    pub updates: u64,
}

impl Log {
    /// In this folder, or nowhere. Of a run that goes on the first lines are kept.
    pub fn new(folder: Option<&Path>, kept: Option<Kept>) -> Result<Self, TrainError> {
        let Some(folder) = folder else {
            return Ok(Self { file: None, board: None, bytes: 0 });
        };
        let path = folder.join("metrics.jsonl");
        let opened = match kept {
            None => File::create(&path).map(|file| (file, 0)),
            Some(kept) => goes_on(&path, kept.bytes),
        };
        let (file, bytes) = opened.map_err(|error| TrainError::file(&path, "creating the log", error))?;
        let board = Writer::new(&folder.join("tensorboard"), kept.map(|kept| kept.updates))?;
        Ok(Self { file: Some((path, LineWriter::new(file))), board: Some(board), bytes })
    }

    /// How long it is.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn save(&mut self, numbers: &SaveNumbers) -> Result<(), TrainError> {
        self.write(&Line::Checkpoint(numbers))
    }

    pub fn step(&mut self, numbers: &StepNumbers) -> Result<(), TrainError> {
        self.write(&Line::Train(numbers))?;
        let Some(board) = &mut self.board else { return Ok(()) };
        let scale = numbers.loss_scale.map(|scale| ("loss_scale", scale));
        let always = [
            ("tokens_per_second", numbers.tokens_per_second),
            ("skipped_steps", numbers.skipped_steps as f64),
            ("memory_bytes", numbers.memory_bytes as f64),
            ("peak_bytes", numbers.peak_bytes as f64),
        ];
        // A step that made no update has no rate, and a loss that would only spoil the curve.
        let of_update = [
            ("loss", numbers.loss),
            ("learning_rate", numbers.learning_rate),
            ("gradient_norm", numbers.gradient_norm),
        ];
        let of_update = of_update.into_iter().filter(|_| numbers.skipped.is_none());
        let values: Vec<_> = always.into_iter().chain(scale).chain(of_update).collect();
        Ok(board.train(numbers.step, &values)?)
    }

    pub fn evaluation(&mut self, numbers: &EvaluationNumbers) -> Result<(), TrainError> {
        self.write(&Line::Valid(numbers))?;
        let Some(board) = &mut self.board else { return Ok(()) };
        let scores = numbers.scores.iter().map(|(name, value)| (name.as_str(), *value));
        let values: Vec<_> = std::iter::once(("loss", numbers.loss)).chain(scores).collect();
        Ok(board.valid(numbers.step, &values)?)
    }

    fn write(&mut self, line: &Line) -> Result<(), TrainError> {
        let Some((path, file)) = &mut self.file else {
            return Ok(());
        };
        let written = serde_json::to_string(line).map_err(std::io::Error::other).and_then(|line| {
            self.bytes += line.len() as u64 + 1;
            writeln!(file, "{line}")
        });
        written.map_err(|error| TrainError::file(path.as_path(), "writing the log", error))
    }
}

/// An earlier log, cut to a length, and that length. One that is shorter is not that run's: it is kept whole.
fn goes_on(path: &Path, kept: u64) -> std::io::Result<(File, u64)> {
    let file = OpenOptions::new().append(true).create(true).open(path)?;
    let length = file.metadata()?.len().min(kept);
    file.set_len(length)?;
    Ok((file, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_goes_on_keeps_the_lines_up_to_the_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        let numbers =
            |step| EvaluationNumbers { step, loss: 0.5, items: 1, seconds: 0.0, scores: Scores::new() };
        let mut log = Log::new(Some(folder.path()), None).unwrap();
        log.evaluation(&numbers(1)).unwrap();
        let kept = Kept { bytes: log.bytes(), updates: 1 };
        log.evaluation(&numbers(2)).unwrap();
        drop(log);
        let mut log = Log::new(Some(folder.path()), Some(kept)).unwrap();
        assert_eq!(log.bytes(), kept.bytes);
        log.evaluation(&numbers(3)).unwrap();
        let text = std::fs::read_to_string(folder.path().join("metrics.jsonl")).unwrap();
        assert_eq!(text.len() as u64, log.bytes());
        let steps: Vec<_> = text
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["step"].clone())
            .collect();
        assert_eq!(steps, [1, 3]);
    }
}
