//! The numeric parts of a page: tiles and tables.

use std::collections::BTreeMap;

use super::escape::escape;
use super::finished::{Disk, Finished, Moved, Rank};
use super::number::{bytes, count, duration, plain};
use super::record::{Record, Saves};
use firebrick::SaveNumbers;
use firebrick::accounting::part;

/// The most important numbers.
pub(crate) fn headline(record: &Record, finished: Option<&Finished>) -> String {
    let mut tiles = String::new();
    let mut tile = |name: &str, value: Option<String>, note: String| {
        let Some(value) = value else { return };
        let note = if note.is_empty() { note } else { format!("<small>{}</small>", escape(&note)) };
        tiles += &format!("<div><dt>{}</dt><dd>{}{note}</dd></div>\n", escape(name), escape(&value));
    };
    let last = record.last_valid.as_ref();
    let best = record.best_valid.as_ref();
    let finite = |number: &f64| number.is_finite();
    let scores = last.iter().flat_map(|line| &line.scores);
    let scores = scores.map(|(name, score)| (name.clone(), Some(*score).filter(finite)));
    let report = finished.cloned().unwrap_or_else(|| Finished {
        steps: record.last.as_ref().map_or(0, |line| line.step),
        train_loss: record.recent_loss(),
        valid_loss: last.map(|line| line.loss).filter(finite),
        valid_scores: scores.collect(),
        best_valid_loss: best.map(|line| line.loss),
        best_step: best.map(|line| line.step),
        tokens_per_second: record.mean_tokens_per_second(),
        tokens_per_second_per_device: record.last.as_ref().and_then(|line| line.tokens_per_second_per_device),
        mfu: record.last.as_ref().and_then(|line| line.mfu),
        skipped_steps: Some(record.skips.count),
        peak_bytes: record.peak.highest().map(|point| point.1),
        ..Finished::default()
    });
    let skipped = report.skipped_steps.unwrap_or(0);
    tile("Updates", Some(count(report.steps as f64)), format!("{} skipped", count(skipped as f64)));
    tile("Training loss", report.train_loss.map(plain), "mean of the last 100 updates".into());
    tile("Validation loss", report.valid_loss.map(plain), "at the last evaluation".into());
    let at = report.best_step.map(|step| format!("at step {}", count(step as f64))).unwrap_or_default();
    tile("Best validation loss", report.best_valid_loss.map(plain), at.clone());
    // Scores of the last evaluation, if those of the best one are unknown.
    let (scores, at) = match report.best_valid_scores.is_empty() {
        true => (&report.valid_scores, "at the last evaluation".to_string()),
        false => (&report.best_valid_scores, format!("best, {at}")),
    };
    for (name, value) in scores.iter().take(6) {
        tile(name, value.map(plain), at.clone());
    }
    let median = report.step_seconds_median.map(|seconds| format!("median step {}", duration(seconds)));
    tile("Tokens per second", report.tokens_per_second.map(count), median.unwrap_or_default());
    let of_several =
        report.tokens_per_second_per_device.filter(|each| Some(*each) < report.tokens_per_second);
    tile("Tokens per second of a device", of_several.map(count), String::new());
    let mfu = report.mfu.map(|share| format!("{:.1}%", 100.0 * share));
    tile("MFU", mfu, "of the devices' peak".into());
    let counted = |bytes: Option<f64>| bytes.filter(|bytes| *bytes > 0.0);
    tile("Peak memory", counted(report.peak_bytes).map(bytes), String::new());
    tile("Parameters", report.parameters.map(count), String::new());
    match report.wall_seconds {
        Some(seconds) => {
            let first =
                report.first_step_seconds.map(|first| format!("first step after {}", duration(first)));
            tile("Wall clock", Some(duration(seconds)), first.unwrap_or_default());
        }
        None => tile("Time", Some(duration(record.seconds)), "in steps, evaluations and pauses".into()),
    }
    format!("<dl class=\"tiles\">\n{tiles}</dl>\n")
}

/// A part of the page with a heading.
pub(crate) fn section(title: &str, body: &str) -> String {
    format!("<section><h2>{title}</h2>\n{body}</section>\n")
}

/// A table with a header; cells are text.
pub(crate) fn table(class: &str, heads: &[&str], rows: &[Vec<String>]) -> String {
    let heads: String = heads.iter().map(|head| format!("<th scope=\"col\">{}</th>", escape(head))).collect();
    let body: String = rows
        .iter()
        .map(|row| {
            let cells = row.iter().enumerate().map(|(column, cell)| match column {
                0 => format!("<th scope=\"row\">{}</th>", escape(cell)),
                _ => format!("<td>{}</td>", escape(cell)),
            });
            format!("<tr>{}</tr>\n", cells.collect::<String>())
        })
        .collect();
    format!(
        "<div class=\"wide\"><table class=\"{class}\"><thead><tr>{heads}</tr></thead>\n<tbody>{body}</tbody></table></div>\n"
    )
}

/// The use of memory by its parts, as `firebrick plan` lists them; empty if not known yet.
pub(crate) fn memory(finished: &Finished) -> String {
    let of_disk = |disk: &Disk| [disk.state_bytes, disk.parameter_bytes].into_iter().flatten().sum::<f64>();
    let on_disk = finished.disk.as_ref().map(of_disk);
    let parts = [
        (part::MASTER, finished.master_bytes),
        (part::REPLICA, finished.replica_bytes),
        (part::AVERAGED, finished.averaged_bytes),
        (part::GRADIENTS, finished.gradient_bytes),
        (part::OPTIMIZER, finished.optimizer_bytes),
        (part::ACTIVATIONS, finished.activation_bytes),
        (part::ON_HOST, finished.host_bytes),
        (part::ON_DISK, on_disk),
        (part::PEAK, finished.peak_bytes),
    ];
    let rows: Vec<Vec<String>> = parts
        .into_iter()
        .filter_map(|(name, number)| Some(vec![name.into(), bytes(number.filter(|bytes| *bytes > 0.0)?)]))
        .collect();
    match rows.is_empty() {
        true => String::new(),
        false => section("Memory", &table("numbers", &["what", "bytes"], &rows)),
    }
}

/// The checkpoints and their cost.
pub(crate) fn checkpoints(saves: &Saves) -> String {
    if saves.count == 0 {
        return String::new();
    }
    let made = saves.count - saves.failed_count;
    let mean = saves.seconds / saves.count as f64;
    let mut words = format!(
        "{} saved, {} failed. A save took {} on average, beside the training, which stood still for {} in all.",
        count(made as f64),
        count(saves.failed_count as f64),
        duration(mean),
        duration(saves.pause_seconds)
    );
    let kept_newest = saves.newest.front().map_or(0, |line| line.step);
    let early_failures = saves.failed.iter().filter(|line| line.step < kept_newest);
    if saves.count > saves.newest.len() as u64 {
        words += " The newest are shown, and the first that failed.";
    }
    let rows: Vec<Vec<String>> = early_failures.chain(&saves.newest).map(save_row).collect();
    let heads = ["step", "took", "pause", "became"];
    section("Checkpoints", &format!("<p>{words}</p>\n{}", table("saves", &heads, &rows)))
}

fn save_row(save: &SaveNumbers) -> Vec<String> {
    let became = match &save.error {
        None => "\u{2713} saved".to_string(),
        Some(error) => format!("\u{2717} failed: {}", error.chars().take(500).collect::<String>()),
    };
    vec![count(save.step as f64), duration(save.seconds), duration(save.pause_seconds), became]
}

/// The memory, traffic and waiting of each rank; empty for a single rank.
pub(crate) fn ranks(ranks: &[Rank]) -> String {
    if ranks.is_empty() {
        return String::new();
    }
    let heads = [
        "rank",
        "master",
        "replica",
        "gradients",
        "optimizer",
        "peak",
        "sent in a step",
        "received in a step",
        "others waited for it",
    ];
    let number = |number: Option<f64>| number.map(bytes).unwrap_or_default();
    let moved = |of: fn(&Moved) -> Option<f64>, kinds: &BTreeMap<String, Moved>| {
        bytes(kinds.values().filter_map(of).sum())
    };
    let rows: Vec<Vec<String>> = ranks
        .iter()
        .map(|rank| {
            vec![
                rank.rank.to_string(),
                number(rank.master_bytes),
                number(rank.replica_bytes),
                number(rank.gradient_bytes),
                number(rank.optimizer_bytes),
                number(rank.peak_bytes),
                moved(|moved| moved.sent_bytes, &rank.per_step),
                moved(|moved| moved.received_bytes, &rank.per_step),
                rank.awaited_seconds.map(duration).unwrap_or_default(),
            ]
        })
        .collect();
    section("Ranks", &table("numbers", &heads, &rows))
}

/// The names and versions of the run's software.
pub(crate) fn versions(versions: &[(String, String)]) -> String {
    if versions.is_empty() {
        return String::new();
    }
    let rows: Vec<_> = versions.iter().map(|(name, version)| vec![name.clone(), version.clone()]).collect();
    section("Versions", &table("versions", &["of", "version"], &rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_in_progress_has_the_numbers_of_its_log() {
        let log = "{\"kind\":\"train\",\"step\":7,\"loss\":1.5,\"tokens\":100,\"seconds\":2.0,\"peak_bytes\":3000000,\"mfu\":0.412,\"tokens_per_second_per_device\":25.0}\n\
                   {\"kind\":\"valid\",\"step\":7,\"loss\":2.5,\"scores\":{\"f1\":0.25}}\n";
        let html = headline(&Record::read(log.as_bytes()).unwrap(), None);
        for part in [
            "<dd>7<",
            "<dd>1.5000<",
            "<dd>2.5000<",
            "<dt>f1</dt><dd>0.2500<",
            "<dd>50<",
            "3.0 MB",
            "<dd>41.2%<",
            "<dd>25<",
        ] {
            assert!(html.contains(part), "{part} in {html}");
        }
    }

    #[test]
    fn failed_saves_are_listed_however_old() {
        let failed = SaveNumbers { step: 1, error: Some("<disk> full".into()), ..SaveNumbers::default() };
        let newest = SaveNumbers { step: 900, seconds: 2.0, ..SaveNumbers::default() };
        let saves = Saves {
            newest: [newest].into(),
            failed: vec![failed],
            count: 50,
            failed_count: 1,
            ..Saves::default()
        };
        let html = checkpoints(&saves);
        assert!(html.contains("49 saved, 1 failed") && html.contains("failed: &lt;disk&gt; full"), "{html}");
    }

    #[test]
    fn each_rank_has_a_row() {
        let sent = |bytes| Moved { sent_bytes: Some(bytes), received_bytes: None };
        let per_step = BTreeMap::from([("all_gather".into(), sent(2e6)), ("scalars".into(), sent(5e5))]);
        let rank = Rank { rank: 3, per_step, awaited_seconds: Some(8.5), ..Rank::default() };
        let html = ranks(&[rank]);
        assert!(html.contains("<th scope=\"row\">3</th>") && html.contains("<td>2.5 MB</td>"), "{html}");
        assert!(html.contains("8.5 s"), "{html}");
    }
}
