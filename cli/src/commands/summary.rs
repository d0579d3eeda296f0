//! Formats the results of commands as text.

use std::fmt::Display;

use firebrick_datasets::counted;

use crate::{BenchReport, Launched, Run, Tokenized};
use firebrick::observe::rank_report::table_of_ranks;
use firebrick::observe::report::TruncatedTexts;
use firebrick::{FailedWrites, Report, Scores};

/// Summarizes a trained run.
pub(crate) fn trained_summary(run: &Run, launched: &Launched) -> String {
    let report = &launched.report;
    let sample = launched.sample.as_ref().map(|sample| format!("{sample}\n\n")).unwrap_or_default();
    let scores = |kind: &str, scores: &Scores| -> Vec<_> {
        scores.iter().map(|(name, value)| (format!("{kind} {name}"), format!("{value:.4}"))).collect()
    };
    let mut rows = Rows::default();
    rows.add("stopped early", report.stopped.as_ref());
    rows.add("steps", Some(format!("{} ({} skipped)", report.steps, report.skipped_steps)));
    rows.add("train loss", Some(format!("{:.4} (mean of the last 100 updates)", report.train_loss)));
    rows.add("valid loss", report.valid_loss.map(|loss| format!("{loss:.4}")));
    rows.extend(scores("valid", &report.valid_scores));
    if let (Some(loss), Some(step)) = (report.best_valid_loss, report.best_step) {
        rows.add("best valid loss", Some(format!("{loss:.4} at step {step}")));
        rows.extend(scores("best", &report.best_valid_scores));
    }
    rows.add("tokens/s", Some(format!("{:.0}", report.tokens_per_second)));
    rows.extend(of_device(report));
    for TruncatedTexts { data, texts, tokens } in &report.truncated {
        let (tokens, texts) = (counted(*tokens, "token"), counted(*texts, "text"));
        rows.add("cut off", Some(format!("{tokens} of {texts} of the {data} data")));
    }
    rows.add("peak memory", Some(format!("{:.1} MB", report.peak_bytes as f64 / 1e6)));
    rows.add("saved in", Some(run.output.display()));
    for FailedWrites { file, failures, error } in &report.failed_writes {
        let ends = if error.is_some() { "it is not complete" } else { "nothing is missing" };
        rows.add("writing failed", Some(format!("{}, of {file}: {ends}", counted(*failures, "time"))));
    }
    let resumed = report.checkpoint_step.map(|step| format!("step {step}; `--resume` continues from it"));
    rows.add("checkpoint", resumed);
    sample + &rows.text + &table_of_ranks(&report.ranks)
}

/// The numbers of a device: tokens per second if there are several, and the utilization if its peak is known.
fn of_device(report: &Report) -> Vec<(&'static str, String)> {
    let per_device = report.tokens_per_second_per_device.filter(|each| *each < report.tokens_per_second);
    let per_device = per_device.map(|each| ("tokens/s/device", format!("{each:.0}")));
    let mfu = report.mfu.map(|share| ("MFU", format!("{:.1}%", 100.0 * share)));
    per_device.into_iter().chain(mfu).collect()
}

/// Numbers with their names, one per line.
#[derive(Default)]
pub(crate) struct Rows {
    pub text: String,
}

impl Rows {
    /// Adds a row, if it has a value.
    pub fn add(&mut self, name: &str, value: Option<impl Display>) {
        self.text += &value.map_or(String::new(), |value| format!("{name:<16} {value}\n"));
    }

    /// Adds rows.
    pub fn extend(&mut self, rows: impl IntoIterator<Item = (impl AsRef<str>, impl Display)>) {
        rows.into_iter().for_each(|(name, value)| self.add(name.as_ref(), Some(value)));
    }
}

/// Summarizes a benchmark and what it was compared with.
pub(crate) fn bench_summary(report: &BenchReport) -> String {
    let BenchReport { trainer, raw, beside } = report;
    let megabytes = |bytes: usize| format!("{:.1}", bytes as f64 / 1e6);
    let line = |name: &str, [step, activations, peak]: [String; 3]| {
        format!("{name:<12} {step:>10} {activations:>15} {peak:>10}\n")
    };
    let measured = |name, step: f64, activations: Option<usize>, peak| {
        let activations = activations.map_or("-".into(), megabytes);
        line(name, [format!("{:.2}", step * 1e3), activations, megabytes(peak)])
    };
    let ratio = |name, ratios: [Option<f64>; 3]| {
        line(name, ratios.map(|ratio| ratio.map_or("-".into(), |ratio| format!("{ratio:.3}"))))
    };
    let of_ranks = table_of_ranks(&trainer.ranks);
    let mut text = line("", ["ms/step", "activations MB", "peak MB"].map(String::from));
    let activations = Some(trainer.activation_bytes);
    text += &measured("this run", trainer.step_seconds_median, activations, trainer.peak_bytes);
    if let Some(other) = beside {
        let activations = Some(other.beside_activation_bytes);
        text += &measured("beside", other.beside_step_seconds_median, activations, other.beside_peak_bytes);
        let ratios =
            [other.step_ratio_to_beside, other.activation_ratio_to_beside, other.peak_ratio_to_beside];
        text += &ratio("ratio", ratios.map(Some));
    }
    if let Some(raw) = raw {
        text += &measured("plain Burn", raw.raw_step_seconds_median, None, raw.raw_peak_bytes);
        text += &ratio("ratio", [Some(raw.step_ratio_to_raw), None, Some(raw.peak_ratio_to_raw)]);
    }
    let mut rows = Rows::default();
    rows.extend(of_device(trainer));
    text + &rows.text + &of_ranks
}

/// Summarizes a tokenized corpus.
pub(crate) fn tokenized_summary(tokenized: &Tokenized) -> String {
    let mut text = format!(
        "{} of {} in {}\n",
        counted(tokenized.tokens, "token"),
        counted(tokenized.documents, "document"),
        tokenized.path.display()
    );
    if let Some(tokenizer) = &tokenized.tokenizer {
        text += &format!("the tokenizer is in {}\n", tokenizer.display());
    }
    let tokenizer = tokenized.tokenizer.as_ref().map_or("...".into(), |path| path.display().to_string());
    text += &format!(
        "a run reads it as data: (path: {:?}, tokenizer: File({tokenizer:?}), ...)\n",
        tokenized.path
    );
    text
}
