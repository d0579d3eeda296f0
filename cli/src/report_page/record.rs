//! A run according to its log, read line by line.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufRead};

use super::curve::Curve;
use super::marks::Marks;
use firebrick::observe::log::{LogLine, for_each_line};
use firebrick::{EvaluationNumbers, SaveNumbers, StepNumbers};

/// The number of recent updates in the training loss, as in the report.
const RECENT: usize = 100;
/// The maximum number of distinct scores.
const MOST_SCORES: usize = 24;
/// The maximum number of saves to keep: the newest ones, and the first failed ones.
const MOST_SAVES: usize = 20;

/// The contents of a log, in memory that does not grow with it.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub loss: Curve,
    pub valid_loss: Curve,
    pub scores: BTreeMap<String, Curve>,
    pub learning_rate: Curve,
    pub gradient_norm: Curve,
    pub loss_scale: Curve,
    pub tokens_per_second: Curve,
    pub memory: Curve,
    pub activations: Curve,
    pub peak: Curve,
    pub sent: Curve,
    pub received: Curve,
    pub waiting: Curve,
    /// Steps that made no update.
    pub skips: Marks,
    /// Losses that were not finite.
    pub not_finite: Marks,
    pub saves: Saves,
    /// The first and the last step of any line.
    pub steps: Option<(u64, u64)>,
    pub last: Option<StepNumbers>,
    pub last_valid: Option<EvaluationNumbers>,
    pub best_valid: Option<EvaluationNumbers>,
    pub tokens: f64,
    /// Seconds of all steps.
    pub step_seconds: f64,
    /// Seconds of steps, evaluations and pauses.
    pub seconds: f64,
    /// The number of lines that are not log lines, or of an unknown kind.
    pub passed_over: u64,
    /// Whether the last line is incomplete and cannot be parsed.
    pub cut_short: bool,
    recent: VecDeque<(f64, f64)>,
}

/// The saves of a run.
#[derive(Debug, Default)]
pub(crate) struct Saves {
    pub newest: VecDeque<SaveNumbers>,
    pub failed: Vec<SaveNumbers>,
    pub count: u64,
    pub failed_count: u64,
    pub seconds: f64,
    pub pause_seconds: f64,
}

impl Record {
    /// Reads a log to its end.
    pub fn read(log: impl BufRead) -> io::Result<Self> {
        let mut record = Self::default();
        for_each_line(log, |line, ended| match line.map(|line| (line.is_empty(), LogLine::parse(line))) {
            Some((_, Some(line))) => record.add(line),
            Some((true, None)) => {}
            _ if ended => record.passed_over += 1,
            _ => record.cut_short = true,
        })?;
        Ok(record)
    }

    /// Adds a line.
    pub fn add(&mut self, line: LogLine) {
        let step = line.step();
        let (first, last) = self.steps.unwrap_or((step, step));
        self.steps = Some((first.min(step), last.max(step)));
        match line {
            LogLine::Train(line) => self.train(*line),
            LogLine::Valid(line) => self.valid(line),
            LogLine::Checkpoint(line) => self.saves.add(line, &mut self.seconds),
        }
    }

    fn train(&mut self, line: StepNumbers) {
        let step = line.step;
        match &line.skipped {
            Some(reason) => self.skips.add(step, reason),
            None if !line.loss.is_finite() => self.not_finite.add(step, "the loss was not finite"),
            None => {
                self.recent.push_back((line.loss, line.items.max(1) as f64));
                if self.recent.len() > RECENT {
                    self.recent.pop_front();
                }
            }
        }
        self.loss.add(step, line.applied(line.loss));
        self.learning_rate.add(step, line.applied(line.learning_rate));
        self.gradient_norm.add(step, line.applied(line.gradient_norm));
        self.loss_scale.add(step, line.loss_scale);
        self.tokens_per_second.add(step, Some(line.tokens_per_second));
        // 0 bytes mean that nothing measured them.
        let counted = |bytes: u64| (bytes > 0).then_some(bytes as f64);
        self.memory.add(step, counted(line.memory_bytes as u64));
        self.activations.add(step, counted(line.activation_bytes as u64));
        self.peak.add(step, counted(line.peak_bytes as u64));
        self.sent.add(step, counted(line.sent_bytes));
        self.received.add(step, counted(line.received_bytes));
        self.waiting.add(step, line.waiting());
        self.tokens += line.tokens as f64;
        self.step_seconds += line.seconds;
        self.seconds += line.seconds;
        self.last = Some(line);
    }

    fn valid(&mut self, line: EvaluationNumbers) {
        self.valid_loss.add(line.step, Some(line.loss));
        for (name, value) in &line.scores {
            if self.scores.contains_key(name) || self.scores.len() < MOST_SCORES {
                self.scores.entry(name.clone()).or_default().add(line.step, Some(*value));
            }
        }
        self.seconds += line.seconds;
        let best = self.best_valid.as_ref().map(|best| best.loss);
        if line.loss.is_finite() && best.is_none_or(|best| line.loss < best) {
            self.best_valid = Some(line.clone());
        }
        self.last_valid = Some(line);
    }

    /// The mean loss of the last updates, weighted by items.
    pub fn recent_loss(&self) -> Option<f64> {
        let items: f64 = self.recent.iter().map(|(_, items)| items).sum();
        let sum: f64 = self.recent.iter().map(|(loss, items)| loss * items).sum();
        (items > 0.0).then_some(sum / items)
    }

    /// The mean over the seconds of all steps, without evaluation.
    pub fn mean_tokens_per_second(&self) -> Option<f64> {
        (self.step_seconds > 0.0).then_some(self.tokens / self.step_seconds)
    }
}

impl Saves {
    fn add(&mut self, line: SaveNumbers, seconds: &mut f64) {
        self.count += 1;
        self.seconds += line.seconds;
        self.pause_seconds += line.pause_seconds;
        *seconds += line.pause_seconds;
        if line.error.is_some() {
            self.failed_count += 1;
            if self.failed.len() < MOST_SAVES {
                self.failed.push(line.clone());
            }
        }
        self.newest.push_back(line);
        if self.newest.len() > MOST_SAVES {
            self.newest.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = concat!(
        r#"{"kind":"train","step":1,"loss":4.0,"items":10,"tokens":20,"seconds":2.0,"memory_bytes":0}"#,
        "\n",
        r#"{"kind":"train","step":1,"loss":9.0,"items":10,"tokens":20,"seconds":2.0,"skipped":"overflow"}"#,
        "\n\n",
        r#"{"kind":"train","step":2,"loss":null,"items":10,"tokens":20,"seconds":1.0}"#,
        "\n",
        r#"{"kind":"train","step":3,"loss":1.0,"items":30,"tokens":20,"seconds":1.0}"#,
        "\n",
        r#"{"kind":"valid","step":3,"loss":2.0,"seconds":3.0,"scores":{"f1":0.5}}"#,
        "\n",
        r#"{"kind":"valid","step":3,"loss":2.5,"seconds":3.0}"#,
        "\n",
        r#"{"kind":"checkpoint","step":3,"seconds":9.0,"pause_seconds":0.5,"error":"disk full"}"#,
        "\n",
        r#"{"kind":"moon","step":3}"#,
        "\nnot a line\n",
        r#"{"kind":"train","st"#
    );

    #[test]
    fn a_log_is_read_line_by_line() {
        let record = Record::read(LOG.as_bytes()).unwrap();
        assert_eq!(record.loss.points(), [(1.0, 4.0), (3.0, 1.0)]);
        assert_eq!(record.valid_loss.points(), [(3.0, 2.0), (3.0, 2.5)]);
        assert_eq!(record.scores["f1"].points(), [(3.0, 0.5)]);
        assert_eq!((record.skips.count, record.not_finite.count), (1, 1));
        assert_eq!((record.passed_over, record.cut_short), (2, true));
        assert_eq!(record.recent_loss(), Some(1.75));
        assert_eq!(record.best_valid.as_ref().unwrap().loss, 2.0);
        assert_eq!((record.seconds, record.step_seconds), (12.5, 6.0));
        assert_eq!(record.mean_tokens_per_second(), Some(80.0 / 6.0));
        assert_eq!((record.saves.failed_count, record.saves.pause_seconds), (1, 0.5));
        assert!(record.memory.points().is_empty());
    }

    #[test]
    fn a_last_line_without_an_end_counts_where_it_is_whole() {
        let record = Record::read(&br#"{"kind":"train","step":1,"loss":4.0}"#[..]).unwrap();
        assert!(!record.cut_short && record.loss.points() == [(1.0, 4.0)]);
    }

    #[test]
    fn nothing_grows_with_the_log() {
        let mut record = Record::default();
        for step in 0..20_000 {
            let scores = BTreeMap::from([(format!("score {step}"), 1.0)]);
            record.add(LogLine::Valid(EvaluationNumbers { step, scores, ..Default::default() }));
            let error = Some("full".into());
            record.add(LogLine::Checkpoint(SaveNumbers { step, error, ..SaveNumbers::default() }));
            record.add(LogLine::Train(Box::new(StepNumbers { step, ..StepNumbers::default() })));
        }
        assert_eq!(record.scores.len(), MOST_SCORES);
        assert_eq!((record.saves.newest.len(), record.saves.failed.len()), (MOST_SAVES, MOST_SAVES));
        assert_eq!((record.saves.count, record.recent.len()), (20_000, RECENT));
    }
}
