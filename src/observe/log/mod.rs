//! The log of a run's numbers as JSON lines.

mod going_on;

use std::fs::File;
use std::path::Path;

use firebrick_datasets::Fingerprint;

use crate::files::appended::Appended;
use crate::files::writes::Writes;
use crate::observe::log_line::LogLine;
use crate::observe::numbers::{EvaluationNumbers, SaveNumbers, StepNumbers};
use crate::observe::observer::Observer;
use crate::{FailedWrites, TrainError};

pub(crate) use going_on::{Past, marks};

/// The log file in the output folder.
pub(crate) const LOG: &str = "metrics.jsonl";

/// Writes `metrics.jsonl`: a line per step, evaluation and save. Numbers that are not finite are `null`. Each line is
/// passed to the operating system at once, so a killed run keeps all its lines. Lines that cannot be written, as on a
/// full disk, are kept and retried with the next line.
pub(crate) struct Log {
    /// A rank without an output folder writes nothing.
    file: Option<Appended>,
    writes: Writes,
    bytes: u64,
    /// The checksum of those bytes.
    sum: blake3::Hasher,
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
    /// The file cannot be created. Once it exists, no write error ends the run.
    pub fn new(folder: Option<&Path>, tells: bool) -> Result<Self, TrainError> {
        let create = |folder: &Path| {
            let path = folder.join(LOG);
            File::create(&path).map_err(|error| TrainError::file(&path, "creating the log", error))
        };
        let file = folder.map(create).transpose()?.map(Appended::new);
        Ok(Self { file, writes: Writes::of(LOG, tells), bytes: 0, sum: blake3::Hasher::new() })
    }

    /// Continues the log of a run that resumes from a checkpoint with this mark, and returns the history in its
    /// lines. `others` are the marks of all checkpoints of the run.
    ///
    /// # Errors
    ///
    /// The log cannot be read, or cannot be written.
    pub fn going_on(
        folder: &Path,
        mark: &Mark,
        others: &[Mark],
        tells: bool,
    ) -> Result<(Self, Past), TrainError> {
        let path = folder.join(LOG);
        let goes_on = going_on::go_on(folder, mark, others);
        let goes_on = goes_on.map_err(|error| TrainError::file(&path, "going on with the log", error))?;
        let going_on::GoingOn { file, bytes, sum, past } = goes_on;
        Ok((Self { file: Some(Appended::new(file)), writes: Writes::of(LOG, tells), bytes, sum }, past))
    }

    /// The position after this many updates, including lines that are not written yet.
    pub fn mark(&self, updates: u64) -> Mark {
        Mark { bytes: self.bytes, sum: Some((&self.sum).into()), updates }
    }

    fn write(&mut self, line: &LogLine) {
        let Some(file) = &mut self.file else { return };
        let text = match serde_json::to_string(line) {
            Ok(text) => text + "\n",
            Err(error) => return self.writes.note(Err(error)),
        };
        self.bytes += text.len() as u64;
        self.sum.update(text.as_bytes());
        file.add(text.as_bytes());
        self.flush();
    }
}

impl Observer for Log {
    fn step(&mut self, numbers: &StepNumbers) {
        self.write(&LogLine::Train(Box::new(numbers.clone())));
    }

    fn evaluated(&mut self, numbers: &EvaluationNumbers) {
        self.write(&LogLine::Valid(numbers.clone()));
    }

    fn saved(&mut self, numbers: &SaveNumbers) {
        self.write(&LogLine::Checkpoint(numbers.clone()));
    }

    fn flush(&mut self) {
        if let Some(file) = &mut self.file {
            self.writes.note(file.write_out());
        }
    }

    fn failed_writes(&self) -> Vec<FailedWrites> {
        self.writes.failed().into_iter().collect()
    }
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
        log.evaluated(&numbers(1));
        let mark = log.mark(1);
        log.evaluated(&numbers(2));
        drop(log);
        let (mut log, _) = Log::going_on(folder.path(), &mark, &[mark], false).unwrap();
        assert_eq!(log.mark(1), mark);
        log.evaluated(&numbers(3));
        let text = std::fs::read_to_string(folder.path().join("metrics.jsonl")).unwrap();
        assert_eq!(text.len() as u64, log.mark(3).bytes);
        let steps: Vec<_> = text
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["step"].clone())
            .collect();
        assert_eq!(steps, [1, 3]);
    }
}
