//! Lines of `metrics.jsonl`, for reading a run that another process writes.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read};

use serde::Deserialize;

/// Longer than any line of a run. Longer lines are skipped without being buffered.
const LONGEST: u64 = 1 << 20;

/// A line of the log. Unknown fields are ignored and missing fields are `None`, so runs of other versions can be read
/// too. A number that is not finite is `null` in the log and `None` here.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum LogLine {
    /// A step.
    Train(Box<TrainLine>),
    /// An evaluation.
    Valid(ValidLine),
    /// A save.
    Checkpoint(SaveLine),
}

/// A step: see [`StepNumbers`](crate::StepNumbers).
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct TrainLine {
    /// Number of updates made.
    pub step: u64,
    /// The epoch of its samples.
    pub epoch: Option<u64>,
    /// The mean loss of an item.
    pub loss: Option<f64>,
    /// The learning rate of the update.
    pub learning_rate: Option<f64>,
    /// The norm of all gradients, before clipping.
    pub gradient_norm: Option<f64>,
    /// The factor of the loss in mixed precision.
    pub loss_scale: Option<f64>,
    /// Number of supervised items.
    pub items: Option<f64>,
    /// Number of tokens.
    pub tokens: Option<f64>,
    /// The time it took, in seconds.
    pub seconds: Option<f64>,
    /// Tokens per second of all ranks.
    pub tokens_per_second: Option<f64>,
    /// Number of skipped steps so far.
    pub skipped_steps: Option<u64>,
    /// Why the step was skipped, if it was.
    pub skipped: Option<String>,
    /// Bytes in use after the step.
    pub memory_bytes: Option<f64>,
    /// The most bytes of activations.
    pub activation_bytes: Option<f64>,
    /// The most bytes in use so far.
    pub peak_bytes: Option<f64>,
    /// Bytes sent to other ranks.
    pub sent_bytes: Option<f64>,
    /// Bytes received from other ranks.
    pub received_bytes: Option<f64>,
    /// The rank that the others waited for longest.
    pub slowest_rank: Option<usize>,
    /// The longest time that a rank waited for another, in seconds.
    pub waited_seconds: Option<f64>,
}

impl TrainLine {
    /// A number of a step that made an update. The numbers of a skipped step belong to discarded gradients.
    pub fn applied(&self, number: Option<f64>) -> Option<f64> {
        number.filter(|_| self.skipped.is_none())
    }

    /// The numbers that TensorBoard shows, by name.
    pub fn board_values(&self) -> Vec<(&'static str, f64)> {
        let values = [
            ("tokens_per_second", self.tokens_per_second),
            ("skipped_steps", self.skipped_steps.map(|steps| steps as f64)),
            ("memory_bytes", self.memory_bytes),
            ("peak_bytes", self.peak_bytes),
            ("loss_scale", self.loss_scale),
            // A skipped step has no rate, and its loss would only distort the curve.
            ("loss", self.applied(Some(self.loss.unwrap_or(f64::NAN)))),
            ("learning_rate", self.applied(self.learning_rate)),
            ("gradient_norm", self.applied(Some(self.gradient_norm.unwrap_or(f64::NAN)))),
        ];
        values.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// The time that the longest-waiting rank waited for another, as a percentage of the step.
    pub fn waiting(&self) -> Option<f64> {
        Some(100.0 * self.waited_seconds? / self.seconds?.max(f64::MIN_POSITIVE))
    }
}

/// An evaluation.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ValidLine {
    /// Number of updates made.
    pub step: u64,
    /// The mean loss of an item.
    pub loss: Option<f64>,
    /// The time it took, in seconds.
    pub seconds: Option<f64>,
    /// The scores by name.
    #[serde(default)]
    pub scores: BTreeMap<String, Option<f64>>,
}

/// A save.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct SaveLine {
    /// Number of updates made.
    pub step: u64,
    /// The time it took, in seconds.
    pub seconds: Option<f64>,
    /// The time that the training waited for it, in seconds.
    pub pause_seconds: Option<f64>,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

impl ValidLine {
    /// The numbers that TensorBoard shows, by name.
    pub fn board_values(&self) -> Vec<(&str, f64)> {
        let scores = self.scores.iter().map(|(name, value)| (name.as_str(), value.unwrap_or(f64::NAN)));
        std::iter::once(("loss", self.loss.unwrap_or(f64::NAN))).chain(scores).collect()
    }
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
        assert_eq!((train.step, train.loss, train.skipped.as_deref()), (3, None, Some("overflow")));
        let valid = br#"{"kind":"valid","step":4,"loss":2.5,"scores":{"f1":0.5,"accuracy":null}}"#;
        let Some(LogLine::Valid(valid)) = LogLine::parse(valid) else { panic!() };
        assert_eq!((valid.scores["f1"], valid.scores["accuracy"]), (Some(0.5), None));
        for other in
            [r#"{"kind":"weather","step":1}"#, r#"{"kind":"train"}"#, r#"{"kind":"train","st"#, "", "7"]
        {
            assert_eq!(LogLine::parse(other.as_bytes()), None, "{other}");
        }
    }

    #[test]
    fn numbers_of_a_skipped_step_do_not_count() {
        let skipped = TrainLine { skipped: Some("overflow".into()), ..TrainLine::default() };
        assert_eq!(skipped.applied(Some(1.0)), None);
        assert_eq!(TrainLine::default().applied(Some(1.0)), Some(1.0));
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
