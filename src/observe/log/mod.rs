//! The log of a run's numbers as JSON lines, as the run writes them and as readers of a run see them.

mod going_on;

use std::fs::File;
use std::io::{self, BufRead, Read};
use std::path::Path;

use firebrick_datasets::Fingerprint;
use serde::{Deserialize, Serialize};

use crate::files::appended::AppendedFile;
use crate::files::writes::Writes;
use crate::observe::numbers::{EvaluationNumbers, SaveNumbers, StepNumbers};
use crate::observe::observer::Observer;
use crate::{FailedWrites, TrainError};

pub(crate) use going_on::Past;

/// The log file in the output folder.
pub(crate) const LOG: &str = "metrics.jsonl";

/// Writes `metrics.jsonl`: a line per step, evaluation and save. Numbers that are not finite are `null`. Each line is
/// passed to the operating system at once, so a killed run keeps all its lines. Lines that cannot be written, as on a
/// full disk, are kept and retried with the next line.
pub(crate) struct Log {
    /// A rank without an output folder writes nothing.
    file: Option<AppendedFile>,
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
        let file = folder.map(create).transpose()?.map(AppendedFile::new);
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
        Ok((Self { file: Some(AppendedFile::new(file)), writes: Writes::of(LOG, tells), bytes, sum }, past))
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

/// Longer than any line of a run. Longer lines are skipped without being buffered.
const LONGEST: u64 = 1 << 20;

/// A line of the log. Unknown fields are ignored and [missing ones](super::numbers) have defaults, so runs of other
/// versions can be read too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum LogLine {
    /// A step.
    Train(Box<StepNumbers>),
    /// An evaluation.
    Valid(EvaluationNumbers),
    /// A save.
    Checkpoint(SaveNumbers),
}

impl LogLine {
    /// Parses a line; `None` if it is not a log line, or is of an unknown kind.
    pub fn parse(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }

    /// The number of updates before it was written.
    pub fn step(&self) -> u64 {
        match self {
            Self::Train(line) => line.step,
            Self::Valid(line) => line.step,
            Self::Checkpoint(line) => line.step,
        }
    }
}

/// Passes each line of a file to `take`, without its line end, and whether it had one. Uses bounded memory; a line
/// that is too long is passed as `None`.
pub fn for_each_line(mut reader: impl BufRead, mut take: impl FnMut(Option<&[u8]>, bool)) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        if (&mut reader).take(LONGEST).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        if line.ends_with(b"\n") {
            line.pop();
            take(Some(&line), true);
        } else if (line.len() as u64) < LONGEST {
            take(Some(&line), false);
        } else {
            take(None, skip_line(&mut reader)?);
        }
    }
}

/// Skips the rest of a line, and returns whether it had an end.
fn skip_line(reader: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let read = reader.fill_buf()?;
        if read.is_empty() {
            return Ok(false);
        }
        let end = read.iter().position(|byte| *byte == b'\n');
        let length = end.map_or(read.len(), |end| end + 1);
        reader.consume(length);
        if end.is_some() {
            return Ok(true);
        }
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

    #[test]
    fn a_line_is_read_whatever_fields_it_has() {
        let train = br#"{"kind":"train","step":3,"loss":null,"new":[1],"skipped":"overflow"}"#;
        let Some(LogLine::Train(train)) = LogLine::parse(train) else { panic!() };
        assert!(train.loss.is_nan() && train.tokens_per_second.is_nan() && train.memory_bytes == 0);
        assert_eq!((train.step, train.skipped.as_deref()), (3, Some("overflow")));
        let valid = br#"{"kind":"valid","step":4,"loss":2.5,"new":1,"scores":{"f1":0.5,"accuracy":null}}"#;
        let Some(LogLine::Valid(valid)) = LogLine::parse(valid) else { panic!() };
        assert!(valid.scores["f1"] == 0.5 && valid.scores["accuracy"].is_nan());
        for other in
            [r#"{"kind":"weather","step":1}"#, r#"{"kind":"train"}"#, r#"{"kind":"train","st"#, "", "7"]
        {
            assert_eq!(LogLine::parse(other.as_bytes()), None, "{other}");
        }
    }

    /// Readers of other programs rely on the names, and on what is left out.
    #[test]
    fn a_line_is_written_as_it_ever_was() {
        let step =
            StepNumbers { step: 1, loss: f64::NAN, learning_rate: 1e-3, items: 96, ..Default::default() };
        let text = serde_json::to_string(&LogLine::Train(Box::new(step))).unwrap();
        let written = r#"{"kind":"train","step":1,"epoch":0,"loss":null,"learning_rate":0.001,"gradient_norm":0.0,"items":96,"tokens":0,"seconds":0.0,"tokens_per_second":0.0,"skipped_steps":0,"memory_bytes":0,"parameter_bytes":0,"gradient_bytes":0,"optimizer_bytes":0,"activation_bytes":0,"peak_bytes":0}"#;
        assert_eq!(text, written);
        let step = StepNumbers {
            loss_scale: Some(2.0),
            skipped: Some("overflow".into()),
            sent_bytes: 3,
            received_bytes: 4,
            slowest_rank: Some(1),
            waited_seconds: Some(0.5),
            ..StepNumbers::default()
        };
        let text = serde_json::to_string(&LogLine::Train(Box::new(step.clone()))).unwrap();
        let written = r#"{"kind":"train","step":0,"epoch":0,"loss":0.0,"learning_rate":0.0,"gradient_norm":0.0,"loss_scale":2.0,"items":0,"tokens":0,"seconds":0.0,"tokens_per_second":0.0,"skipped_steps":0,"skipped":"overflow","memory_bytes":0,"parameter_bytes":0,"gradient_bytes":0,"optimizer_bytes":0,"activation_bytes":0,"peak_bytes":0,"sent_bytes":3,"received_bytes":4,"slowest_rank":1,"waited_seconds":0.5}"#;
        assert_eq!(text, written);
        assert_eq!(LogLine::parse(text.as_bytes()), Some(LogLine::Train(Box::new(step))));
        let valid = LogLine::Valid(EvaluationNumbers { step: 2, loss: 0.5, items: 1, ..Default::default() });
        let text = serde_json::to_string(&valid).unwrap();
        assert_eq!(text, r#"{"kind":"valid","step":2,"loss":0.5,"items":1,"seconds":0.0}"#);
        let save = LogLine::Checkpoint(SaveNumbers { step: 3, ..Default::default() });
        let text = serde_json::to_string(&save).unwrap();
        assert_eq!(text, r#"{"kind":"checkpoint","step":3,"seconds":0.0,"pause_seconds":0.0}"#);
    }

    #[test]
    fn numbers_of_a_skipped_step_do_not_count() {
        let skipped = StepNumbers { skipped: Some("overflow".into()), ..StepNumbers::default() };
        assert_eq!(skipped.applied(1.0), None);
        assert_eq!(StepNumbers::default().applied(1.0), Some(1.0));
    }

    #[test]
    fn a_line_that_is_too_long_is_passed_over_alone() {
        let long = "x".repeat(3 * LONGEST as usize);
        let text = format!("first\n{long}\nlast");
        let mut seen = Vec::new();
        for_each_line(io::BufReader::new(text.as_bytes()), |line, ended| {
            seen.push((line.map(|line| String::from_utf8_lossy(line).into_owned()), ended));
        })
        .unwrap();
        assert_eq!(seen, [(Some("first".into()), true), (None, true), (Some("last".into()), false)]);
    }
}
