//! Lines of `metrics.jsonl`, as the log writes them and as readers of a run see them.

use std::io::{self, BufRead, Read};

use serde::{Deserialize, Serialize};

use crate::observe::numbers::{EvaluationNumbers, SaveNumbers, StepNumbers};

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
