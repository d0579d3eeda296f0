//! The run's numbers as JSON lines.

use std::fs::{File, OpenOptions};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::appended::Appended;
use crate::step::StepNumbers;
use crate::tensorboard::Writer;
use crate::writes::{FailedWrites, Writes};
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
/// `null`. A line is with the system once it is written, so a killed run keeps all its lines. Those that cannot be
/// written, as on a full disk, are kept and tried again with the next one.
///
/// TensorBoard's files, in the folder `tensorboard`, have the same numbers.
pub(crate) struct Log {
    lines: Option<(Appended, Writes)>,
    board: Option<(Writer, Writes)>,
    bytes: u64,
}

/// The file of the lines, in the output folder.
pub(crate) const LOG: &str = "metrics.jsonl";
/// The folder of TensorBoard's files, beside it.
const BOARD: &str = "tensorboard";

/// What is kept of the log of a run that goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    /// Those after them are of steps that are made again.
    pub bytes: u64,
    /// Updates that these lines are of.
    pub updates: u64,
}

impl Log {
    /// In this folder, or nowhere. Of a run that goes on the first lines are kept. With `tells`, what cannot be written
    /// is told on standard error.
    ///
    /// # Errors
    ///
    /// A file cannot be made. Once both are there, no disk ends the run.
    pub fn new(folder: Option<&Path>, kept: Option<Kept>, tells: bool) -> Result<Self, TrainError> {
        let Some(folder) = folder else {
            return Ok(Self { lines: None, board: None, bytes: 0 });
        };
        let path = folder.join(LOG);
        let opened = match kept {
            None => File::create(&path).map(|file| (file, 0)),
            Some(kept) => goes_on(&path, kept.bytes),
        };
        let (file, bytes) = opened.map_err(|error| TrainError::file(&path, "creating the log", error))?;
        let board = Writer::new(&folder.join(BOARD), kept.map(|kept| kept.updates))?;
        Ok(Self {
            lines: Some((Appended::new(file), Writes::of(LOG, tells))),
            board: Some((board, Writes::of(BOARD, tells))),
            bytes,
        })
    }

    /// How long it is, with the lines that are still to be written.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn save(&mut self, numbers: &SaveNumbers) {
        self.write(&Line::Checkpoint(numbers));
    }

    pub fn step(&mut self, numbers: &StepNumbers) {
        self.write(&Line::Train(numbers));
        let Some((board, writes)) = &mut self.board else { return };
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
        match board.train(numbers.step, &values) {
            // It is not known yet whether it can be written.
            Ok(()) if board.holds_back() => {}
            written => writes.note(written),
        }
    }

    pub fn evaluation(&mut self, numbers: &EvaluationNumbers) {
        self.write(&Line::Valid(numbers));
        let Some((board, writes)) = &mut self.board else { return };
        let scores = numbers.scores.iter().map(|(name, value)| (name.as_str(), *value));
        let values: Vec<_> = std::iter::once(("loss", numbers.loss)).chain(scores).collect();
        writes.note(board.valid(numbers.step, &values));
    }

    /// Hands over all that was held back, at the end of a run.
    pub fn finish(&mut self) {
        if let Some((lines, writes)) = &mut self.lines {
            writes.note(lines.write_out());
        }
        if let Some((board, writes)) = &mut self.board {
            writes.note(board.flush());
        }
    }

    /// The files of which an attempt to write them has failed.
    pub fn failed(&self) -> impl Iterator<Item = FailedWrites> {
        let lines = self.lines.as_ref().and_then(|(_, writes)| writes.failed());
        let board = self.board.as_ref().and_then(|(_, writes)| writes.failed());
        lines.into_iter().chain(board)
    }

    fn write(&mut self, line: &Line) {
        let Some((lines, writes)) = &mut self.lines else { return };
        let written = serde_json::to_string(line).map_err(std::io::Error::other).and_then(|line| {
            let line = line + "\n";
            self.bytes += line.len() as u64;
            lines.add(line.as_bytes());
            lines.write_out()
        });
        writes.note(written);
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
        let mut log = Log::new(Some(folder.path()), None, false).unwrap();
        log.evaluation(&numbers(1));
        let kept = Kept { bytes: log.bytes(), updates: 1 };
        log.evaluation(&numbers(2));
        drop(log);
        let mut log = Log::new(Some(folder.path()), Some(kept), false).unwrap();
        assert_eq!(log.bytes(), kept.bytes);
        log.evaluation(&numbers(3));
        let text = std::fs::read_to_string(folder.path().join("metrics.jsonl")).unwrap();
        assert_eq!(text.len() as u64, log.bytes());
        let steps: Vec<_> = text
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["step"].clone())
            .collect();
        assert_eq!(steps, [1, 3]);
    }
}
