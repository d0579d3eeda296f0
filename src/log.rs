//! The run's numbers as JSON lines.

use std::fs::File;
use std::io::{LineWriter, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::TrainError;
use crate::step::StepNumbers;

/// One evaluation, as the log keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct EvaluationNumbers {
    /// Updates made before it.
    pub step: u64,
    /// Mean loss over all supervised items of the validation data.
    pub loss: f64,
    pub items: usize,
    pub seconds: f64,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Line<'a> {
    Train(&'a StepNumbers),
    Valid(&'a EvaluationNumbers),
}

/// Writes `metrics.jsonl`: a line per step, a line per evaluation. Numbers that are not finite are
/// `null`. A line is with the system once it is written, so a killed run keeps all its lines.
pub(crate) struct Log {
    file: Option<(PathBuf, LineWriter<File>)>,
}

impl Log {
    /// In this folder, or nowhere.
    pub fn new(folder: Option<&Path>) -> Result<Self, TrainError> {
        let Some(folder) = folder else {
            return Ok(Self { file: None });
        };
        let path = folder.join("metrics.jsonl");
        let file = File::create(&path).map_err(|error| TrainError::file(&path, "creating the log", error))?;
        Ok(Self { file: Some((path, LineWriter::new(file))) })
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
        let written = serde_json::to_string(line)
            .map_err(std::io::Error::other)
            .and_then(|line| writeln!(file, "{line}"));
        written.map_err(|error| TrainError::file(path.as_path(), "writing the log", error))
    }
}
