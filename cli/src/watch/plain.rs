//! Shows a run in progress as lines, without a terminal.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use firebrick_datasets::counted;

use super::watched::{News, Watched};
use crate::report_page::number::{duration, plain};
use firebrick::observe::lines::{step_line, valid_line};
use firebrick::observe::readings::of_step;

/// The time between two lines of training; evaluations are always printed.
const PAUSE: Duration = Duration::from_secs(5);

/// Writes the same lines as training itself: one every five seconds, and one for each evaluation. Of the lines that
/// exist when it starts, it writes only the last.
#[derive(Debug, Default)]
pub(crate) struct Plain {
    printed: Option<Instant>,
    has_waited: bool,
}

impl Plain {
    /// Writes what is new.
    pub fn tell(&mut self, watched: &Watched, news: &News, out: &mut impl Write) -> io::Result<()> {
        let is_first = self.printed.is_none();
        if is_first && watched.record.steps.is_none() && !self.has_waited {
            self.has_waited = true;
            writeln!(out, "waiting for the first step of {}", watched.name)?;
        }
        if news.restarted {
            writeln!(
                out,
                "the log starts again: the run resumed from a checkpoint, or another run replaced it"
            )?;
        }
        let before = if is_first { news.evaluations.len().saturating_sub(1) } else { 0 };
        for numbers in news.evaluations.iter().skip(before) {
            let scores = numbers.scores.iter().map(|(name, score)| (name.as_str(), *score));
            writeln!(out, "{}", valid_line(numbers, watched.total, scores))?;
        }
        let Some(last) = watched.record.last.as_ref().filter(|_| news.any) else { return out.flush() };
        if watched.finished.is_some() || self.printed.is_none_or(|printed| printed.elapsed() >= PAUSE) {
            self.printed = Some(Instant::now());
            let line = step_line(last.step, watched.total, &of_step(last));
            match watched.remaining().filter(|seconds| *seconds > 0.0 && watched.finished.is_none()) {
                Some(seconds) => writeln!(out, "{line}  left {}", duration(seconds.round()))?,
                None => writeln!(out, "{line}")?,
            }
        }
        if let Some(end) = summary(watched) {
            writeln!(out, "{end}")?;
        }
        out.flush()
    }
}

/// A line on how the run ended, if it has.
pub(crate) fn summary(watched: &Watched) -> Option<String> {
    let report = watched.finished.as_ref()?;
    let mut words = match &report.stopped {
        None => format!("finished after {}", counted(report.steps, "update")),
        Some(reason) => format!("stopped after {}: {reason}", counted(report.steps, "update")),
    };
    if let Some(loss) = report.train_loss {
        words += &format!("; train loss {}", plain(loss));
    }
    if let (Some(loss), Some(step)) = (report.best_valid_loss, report.best_step) {
        words += &format!("; best valid loss {} at step {step}", plain(loss));
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use firebrick::EvaluationNumbers;

    use super::*;
    use crate::report_page::record::Record;

    fn watched(log: &str) -> Watched {
        let record = Record::read(log.as_bytes()).unwrap();
        Watched { name: "run".into(), record, total: Some(120), ..Watched::default() }
    }

    fn printed(plain: &mut Plain, watched: &Watched, news: &News) -> String {
        let mut out = Vec::new();
        plain.tell(watched, news, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    const STEP: &str = r#"{"kind":"train","step":18,"loss":6.3714,"learning_rate":0.000706,"gradient_norm":1.1028,"tokens_per_second":1314.0,"skipped_steps":0,"memory_bytes":6300000,"seconds":2.0}"#;

    #[test]
    fn lines_are_those_of_training_itself() {
        let mut plain = Plain::default();
        let mut run = watched("");
        assert_eq!(printed(&mut plain, &run, &News::default()), "waiting for the first step of run\n");
        assert_eq!(printed(&mut plain, &run, &News::default()), "");

        run = watched(STEP);
        let news = News { any: true, ..News::default() };
        let line =
            "step     18/120  loss 6.3714  lr 7.06e-4  norm 1.1028  tok/s 1314  skipped 0  memory 6.3 MB";
        assert_eq!(printed(&mut plain, &run, &news), format!("{line}  left 3 min 24 s\n"));
        // The next line of training is due after a pause, but an evaluation is printed at once.
        let scores = [("f1".to_string(), 0.25)].into();
        let evaluation = EvaluationNumbers { step: 20, loss: 6.2512, scores, ..Default::default() };
        let news = News { any: true, evaluations: vec![evaluation], ..News::default() };
        assert_eq!(printed(&mut plain, &run, &news), "valid    20/120  loss 6.2512  f1 0.2500\n");
    }

    #[test]
    fn a_run_in_progress_begins_with_its_last_evaluation() {
        let evaluation = |step| EvaluationNumbers { step, loss: 1.0, ..Default::default() };
        let news = News { any: true, evaluations: vec![evaluation(10), evaluation(20)], ..News::default() };
        let lines = printed(&mut Plain::default(), &watched(STEP), &news);
        assert!(!lines.contains("valid    10") && lines.contains("valid    20"), "{lines}");
    }

    #[test]
    fn the_last_line_has_the_reason() {
        let mut run = watched(STEP);
        run.finished = Some(crate::report_page::finished::Finished {
            steps: 18,
            train_loss: Some(6.5),
            stopped: Some("Ctrl-C".into()),
            best_valid_loss: Some(6.25),
            best_step: Some(10),
            ..Default::default()
        });
        let lines = printed(&mut Plain::default(), &run, &News { any: true, ..News::default() });
        let end = "stopped after 18 updates: Ctrl-C; train loss 6.5000; best valid loss 6.2500 at step 10\n";
        assert!(lines.ends_with(end), "{lines}");
    }
}
