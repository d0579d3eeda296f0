//! The page as a whole.

use std::time::SystemTime;

use super::chart::{Chart, Look};
use super::curve::Curve;
use super::escape::escape;
use super::finished::Finished;
use super::marks::{Mark, Marks};
use super::number::{Unit, count};
use super::predictions::Predictions;
use super::record::Record;
use super::{tables, timeline};
use firebrick::FailedWrites;
use firebrick::observe::timeline::StepTimeline;

/// The contents of a page.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// The name of the run's folder.
    pub name: String,
    pub record: Record,
    /// The time of the last write to the log.
    pub log_written: Option<SystemTime>,
    /// The run's report, and the time when it was written.
    pub report: Option<(Finished, Option<SystemTime>)>,
    pub predictions: Predictions,
    /// What the ranks did in some steps.
    pub timelines: Vec<StepTimeline>,
    pub sample: Option<String>,
    /// The text of the run file.
    pub run: Option<String>,
    pub versions: Vec<(String, String)>,
    /// Files that exist but could not be read, with the reasons.
    pub damaged: Vec<String>,
}

impl Page {
    /// The report, if it covers the whole log: during a resumed run, the report of an earlier part may still exist.
    fn finished(&self) -> Option<&Finished> {
        let (report, written) = self.report.as_ref()?;
        let same_step = self.record.last.as_ref().is_none_or(|line| line.step == report.steps);
        let is_newer = matches!((written, self.log_written), (Some(report), Some(log)) if *report >= log);
        (same_step || is_newer).then_some(report)
    }

    /// The page as a single self-contained file.
    pub fn html(&self) -> String {
        let finished = self.finished();
        let name = escape(&self.name);
        let mut body = format!("<header><h1>{name}</h1>{}</header>\n", self.state(finished));
        body += &self.notes();
        body += &tables::headline(&self.record, finished);
        body += &self.curves();
        body += &timeline::html(&self.timelines);
        body += &tables::checkpoints(&self.record.saves);
        body += &finished.map(tables::memory).unwrap_or_default();
        body += &finished.map(|report| tables::ranks(&report.ranks)).unwrap_or_default();
        body += &self.predictions.html();
        body += &text_section("Sample", self.sample.as_deref(), true);
        body += &text_section("Run file", self.run.as_deref(), false);
        body += &tables::versions(&self.versions);
        document(&format!("{name}: training report"), &body)
    }

    /// Whether the run has ended, and why.
    fn state(&self, finished: Option<&Finished>) -> String {
        let last = self.record.last.as_ref().map_or(0, |line| line.step);
        let (class, words, more) = match finished.map(|report| &report.stopped) {
            Some(None) => ("done", "Finished".into(), "All its updates are done.".into()),
            Some(Some(reason)) => ("stopped", "Stopped early".to_string(), escape(reason)),
            None => (
                "open",
                "In progress, or cut off".into(),
                format!("There is no report of it yet. The log reaches step {}.", count(last as f64)),
            ),
        };
        format!("<p class=\"state {class}\"><strong>{words}</strong> {more}</p>")
    }

    /// What the page does not show, and why.
    fn notes(&self) -> String {
        let mut notes = self.damaged.clone();
        let record = &self.record;
        if record.passed_over > 0 {
            let lines = words(record.passed_over, "line", "lines");
            notes.push(format!(
                "{lines} of metrics.jsonl passed over: of no kind that is known here, or damaged."
            ));
        }
        if record.cut_short {
            notes.push("The last line of metrics.jsonl is cut short: it was being written, or the run was killed. It was passed over.".into());
        }
        if record.last.is_none() {
            notes.push("No step is made yet.".into());
        }
        if let Some(error) = self.finished().and_then(|report| report.checkpoint_error.as_ref()) {
            notes.push(format!("The last save failed: {error}"));
        }
        for FailedWrites { file, failures, error } in
            self.finished().iter().flat_map(|report| &report.failed_writes)
        {
            let attempts = words(*failures, "attempt", "attempts");
            notes.push(match error {
                Some(error) => {
                    format!("{file} is not complete: {attempts} to write it failed, the last with: {error}")
                }
                None => format!("{attempts} to write {file} failed; nothing is missing."),
            });
        }
        let items: String = notes.iter().map(|note| format!("<li>{}</li>\n", escape(note))).collect();
        if items.is_empty() { items } else { format!("<ul class=\"notes\">\n{items}</ul>\n") }
    }

    fn curves(&self) -> String {
        let record = &self.record;
        let Some((first, last)) = record.steps else { return String::new() };
        let steps = (first as f64, last as f64);
        let chart = |id: &str, title: &'static str, unit: Unit| Chart::new(id, title, unit, steps);
        let one = |id: &str, title: &'static str, curve: &Curve| {
            chart(id, title, Unit::Plain).line(title, curve, Look::First).html()
        };
        let mut small = String::new();
        for (number, (name, curve)) in record.scores.iter().enumerate() {
            let chart = Chart::new(&format!("score-{number}"), name, Unit::Plain, steps);
            small += &chart.line(name, curve, Look::Evaluated).html();
        }
        small += &one("learning-rate", "Learning rate", &record.learning_rate);
        small += &chart("gradient-norm", "Gradient norm", Unit::Plain)
            .noisy("before clipping", &record.gradient_norm)
            .html();
        small += &one("loss-scale", "Loss scale", &record.loss_scale);
        small += &chart("throughput", "Throughput", Unit::PerSecond)
            .noisy("tokens per second", &record.tokens_per_second)
            .html();
        small += &chart("memory", "Memory", Unit::Bytes)
            .peaks("most so far", &record.peak, Look::First)
            .peaks("in use after the step", &record.memory, Look::Second)
            .peaks("activations of a pass, at most", &record.activations, Look::Third)
            .html();
        small += &chart("waiting", "Waiting for the slowest rank", Unit::Percent)
            .noisy("longest wait", &record.waiting)
            .html();
        small += &chart("exchange", "Exchanged with other ranks", Unit::Bytes)
            .peaks("sent in a step", &record.sent, Look::First)
            .peaks("received in a step", &record.received, Look::Second)
            .html();
        let (loss, reasons) = self.loss(steps);
        let range = self.range_test(steps);
        tables::section("Curves", &format!("{loss}{reasons}{range}<div class=\"charts\">\n{small}</div>"))
    }

    /// The loss against the learning rates of a range test.
    fn range_test(&self, steps: (f64, f64)) -> String {
        if !self.run.as_ref().is_some_and(|run| run.contains("LrRangeTest(")) {
            return String::new();
        }
        let Record { loss, learning_rate, .. } = &self.record;
        let chart = Chart::new("range-test", "Loss by learning rate", Unit::Plain, steps);
        let chart = chart.noisy("training", loss).along("learning rate", learning_rate).html();
        let hint = "<p>The highest useful rate lies where the loss still falls steeply, well below where it is lowest.</p>";
        if chart.is_empty() { chart } else { chart + hint + "\n" }
    }

    /// The loss, marked with events of the run.
    fn loss(&self, steps: (f64, f64)) -> (String, String) {
        let record = &self.record;
        let marks = |saves: &mut dyn Iterator<Item = &firebrick::SaveNumbers>| -> Vec<Mark> {
            saves
                .map(|save| Mark {
                    step: save.step,
                    reason: save.error.clone().unwrap_or_else(|| "saved".into()),
                })
                .collect()
        };
        let saved = marks(&mut record.saves.newest.iter().filter(|save| save.error.is_none()));
        let failed = marks(&mut record.saves.failed.iter());
        let made = record.saves.count - record.saves.failed_count;
        let describe_made = match made > saved.len() as u64 {
            true => format!("the newest of {} checkpoints", count(made as f64)),
            false => words(made, "checkpoint", "checkpoints"),
        };
        let describe_failure = words(record.saves.failed_count, "failed save", "failed saves");
        let skipped = words(record.skips.count, "skipped step", "skipped steps");
        let not_finite = words(record.not_finite.count, "loss not finite", "losses not finite");
        let chart = Chart::new("loss", "Loss", Unit::Plain, steps)
            .noisy("training", &record.loss)
            .line("validation", &record.valid_loss, Look::Evaluated)
            .marked(&skipped, "skip", &record.skips.kept)
            .marked(&not_finite, "infinite", &record.not_finite.kept)
            .marked(&describe_made, "save", &saved)
            .marked(&describe_failure, "failed", &failed);
        (chart.html(), reasons(&record.skips))
    }
}

/// A self-contained document of this title and body, both HTML.
pub(crate) fn document(title: &str, body: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n{body}</main>\n\
         <script>\n{}</script>\n</body>\n</html>\n",
        include_str!("page.css"),
        include_str!("page.js")
    )
}

/// A count with its noun.
fn words(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(number as f64), if number == 1 { one } else { many })
}

/// The reasons for skipped steps.
fn reasons(skips: &Marks) -> String {
    if skips.count == 0 {
        return String::new();
    }
    let steps: Vec<String> = skips.kept.iter().map(|mark| count(mark.step as f64)).collect();
    let places = match steps.len() as u64 == skips.count && skips.count <= 12 {
        true => format!("at step {}", steps.join(", ")),
        false => format!("the first at step {}", steps.first().map_or("", String::as_str)),
    };
    let items: String = skips
        .reasons
        .iter()
        .map(|(reason, times)| format!("<li>{}: {}</li>", escape(reason), count(*times as f64)))
        .collect();
    format!("<div class=\"reasons\"><p>Skipped steps by reason ({places}):</p><ul>{items}</ul></div>\n")
}

/// A section of preformatted text.
fn text_section(title: &str, text: Option<&str>, wraps: bool) -> String {
    let class = if wraps { " class=\"wraps\"" } else { "" };
    match text.filter(|text| !text.trim().is_empty()) {
        Some(text) => tables::section(title, &format!("<pre{class} tabindex=\"0\">{}</pre>", escape(text))),
        None => String::new(),
    }
}
