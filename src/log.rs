//! The run's numbers as JSON lines.

use std::fs::{File, OpenOptions};
use std::io::{LineWriter, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::step::StepNumbers;
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
pub(crate) struct Log {
    file: Option<(PathBuf, LineWriter<File>)>,
    bytes: u64,
}

impl Log {
    /// In this folder, or nowhere. The lines of a run that goes on are kept up to so many bytes: those
    /// after them are of steps that are made again.
    pub fn new(folder: Option<&Path>, kept: Option<u64>) -> Result<Self, TrainError> {
        let Some(folder) = folder else {
            return Ok(Self { file: None, bytes: 0 });
        };
        let path = folder.join("metrics.jsonl");
        let opened = match kept {
            None => File::create(&path).map(|file| (file, 0)),
            Some(kept) => goes_on(&path, kept),
        };
        let (file, bytes) = opened.map_err(|error| TrainError::file(&path, "creating the log", error))?;
        Ok(Self { file: Some((path, LineWriter::new(file))), bytes })
    }

    /// How long it is.
    pub fn bytes(&self) -> u64 {
        self.bytes
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
        let kept = log.bytes();
        log.evaluation(&numbers(2)).unwrap();
        drop(log);
        let mut log = Log::new(Some(folder.path()), Some(kept)).unwrap();
        assert_eq!(log.bytes(), kept);
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
