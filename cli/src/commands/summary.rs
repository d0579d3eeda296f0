//! Formats the results of commands as text.

use crate::{BenchReport, Launched, Run, Tokenized};
use firebrick::FailedWrites;
use firebrick::observe::rank_report::table_of_ranks;

/// Summarizes a trained run.
pub(crate) fn trained_summary(run: &Run, launched: &Launched) -> String {
    let report = &launched.report;
    let mut text = String::new();
    if let Some(sample) = &launched.sample {
        text += &format!("{sample}\n\n");
    }
    if let Some(stopped) = &report.stopped {
        text += &format!("stopped early    {stopped}\n");
    }
    text += &format!("steps            {} ({} skipped)\n", report.steps, report.skipped_steps);
    text += &format!("train loss       {:.4} (mean of the last 100 updates)\n", report.train_loss);
    if let Some(loss) = report.valid_loss {
        text += &format!("valid loss       {loss:.4}\n");
    }
    for (name, value) in &report.valid_scores {
        text += &format!("{:16} {value:.4}\n", format!("valid {name}"));
    }
    if let (Some(loss), Some(step)) = (report.best_valid_loss, report.best_step) {
        text += &format!("best valid loss  {loss:.4} at step {step}\n");
        for (name, value) in &report.best_valid_scores {
            text += &format!("{:16} {value:.4}\n", format!("best {name}"));
        }
    }
    text += &format!("tokens/s         {:.0}\n", report.tokens_per_second);
    text += &format!("peak memory      {:.1} MB\n", report.peak_bytes as f64 / 1e6);
    text += &format!("saved in         {}\n", run.output.display());
    for FailedWrites { file, failures, error } in &report.failed_writes {
        let ends = if error.is_some() { "it is not complete" } else { "nothing is missing" };
        text += &format!("writing failed   {failures} times, of {file}: {ends}\n");
    }
    if let Some(step) = report.checkpoint_step {
        text += &format!("checkpoint       step {step}; `--resume` continues from it\n");
    }
    text + &table_of_ranks(&report.ranks)
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
    text + &of_ranks
}

/// Summarizes a tokenized corpus.
pub(crate) fn tokenized_summary(tokenized: &Tokenized) -> String {
    let mut text = format!(
        "{} tokens of {} document(s) in {}\n",
        tokenized.tokens,
        tokenized.documents,
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
