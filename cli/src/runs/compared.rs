//! Two runs beside each other.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use super::curves::{at, drawn};
use super::listed::{Listed, loss, one_line};
use crate::report_page::number::{bytes, count, duration};
use crate::run::{Registries, settings};

/// Two runs, and what differs.
#[derive(Debug, Serialize)]
pub(crate) struct Compared {
    pub runs: [Listed; 2],
    /// Settings that differ, by path; `None` where a run lacks the setting.
    pub settings: BTreeMap<String, [Option<String>; 2]>,
}

/// The number of steps whose losses are printed.
const ROWS: u64 = 8;

impl Compared {
    /// Reads both runs.
    pub fn read(registries: &Arc<Registries>, first: &Path, second: &Path) -> Self {
        let runs = [first, second].map(|folder| Listed::read(registries, folder));
        let of = runs.each_ref().map(|run| run.run.as_ref().map(settings).unwrap_or_default());
        let paths: BTreeSet<&String> = of.iter().flat_map(BTreeMap::keys).collect();
        let values =
            paths.into_iter().map(|path| (path.clone(), of.each_ref().map(|of| of.get(path).cloned())));
        let differ = values.filter(|(path, [one, other])| one != other && path != "output").collect();
        Self { runs, settings: differ }
    }

    /// Returns the comparison as text.
    pub fn text(&self) -> String {
        let line = |(name, values): (String, [String; 2])| {
            let [one, other] = values.map(|value| one_line(&value));
            format!("{name:<18} {one:<30} {other}\n")
        };
        let heads = (String::new(), ["A", "B"].map(String::from));
        let numbers: String = std::iter::once(heads).chain(self.numbers()).map(line).collect();
        numbers + &self.differences() + &self.curves() + &self.losses()
    }

    /// The names of all scores.
    pub(super) fn scores(&self) -> BTreeSet<&String> {
        self.runs.iter().flat_map(|run| run.record.scores.keys()).collect()
    }

    /// The numbers of both runs by name, without those that neither has.
    pub(super) fn numbers(&self) -> Vec<(String, [String; 2])> {
        let mut rows = Vec::new();
        let mut row = |name: &str, values: [String; 2]| {
            if values.iter().any(|value| value != "-") {
                rows.push((name.to_owned(), values));
            }
        };
        let of = |value: fn(&Listed) -> Option<String>| {
            self.runs.each_ref().map(|run| value(run).unwrap_or_else(|| "-".into()))
        };
        row("run", of(|run| Some(run.folder.display().to_string())));
        row("state", of(|run| Some(run.state().into())));
        row("task", of(|run| run.task.clone()));
        row("model", of(|run| run.model.clone()));
        row("parameters", of(|run| run.report.as_ref()?.parameters.map(count)));
        row("steps", of(|run| Some(run.progress())));
        row("train loss", of(|run| Some(loss(run.train_loss))));
        row("valid loss", of(|run| Some(loss(run.valid_loss))));
        row(
            "best valid loss",
            of(|run| Some(format!("{:.4} at step {}", run.best_valid_loss?, run.best_step?))),
        );
        for name in self.scores() {
            let last = self.runs.each_ref().map(|run| {
                let scores = run.record.last_valid.as_ref().map(|last| &last.scores);
                loss(scores.and_then(|scores| scores.get(name)).copied())
            });
            row(&format!("valid {name}"), last);
        }
        row(
            "tokens/s",
            of(|run| {
                let record = &run.record;
                (record.step_seconds > 0.0).then(|| format!("{:.0}", record.tokens / record.step_seconds))
            }),
        );
        row(
            "peak memory",
            of(|run| {
                let peak = run.record.peak.highest()?.1;
                (peak > 0.0).then(|| bytes(peak))
            }),
        );
        row("time", of(|run| (run.record.seconds > 0.0).then(|| duration(run.record.seconds))));
        rows
    }

    /// Why no settings are listed; `None` if some are.
    pub(super) fn settings_alike(&self) -> Option<&'static str> {
        if self.runs.iter().any(|run| run.run.is_none()) {
            return Some("The settings cannot be compared: a run file is missing, or of another program.");
        }
        self.settings.is_empty().then_some("The settings are the same.")
    }

    /// The settings that differ, by path.
    pub(super) fn different_settings(&self) -> Vec<(String, [String; 2])> {
        let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".into());
        self.settings.iter().map(|(path, values)| (path.clone(), values.each_ref().map(shown))).collect()
    }

    fn differences(&self) -> String {
        if let Some(words) = self.settings_alike() {
            return format!("\n{words}\n");
        }
        let mut text = "\nSettings that differ\n".to_owned();
        let width = self.settings.keys().map(String::len).max().unwrap_or(0);
        for (path, values) in self.different_settings() {
            let [one, other] = values.map(|value| one_line(&value));
            text += &format!("  {path:<width$}  {one:<20} {other}\n");
        }
        text
    }

    fn curves(&self) -> String {
        let names = ["A", "B"];
        let of = |curve: fn(&Listed) -> Vec<(f64, f64)>| {
            let curves: Vec<_> = names.into_iter().zip(self.runs.iter().map(curve)).collect();
            curves
        };
        drawn("train loss", &of(|run| run.record.loss.means()))
            + &drawn("valid loss", &of(|run| run.record.valid_loss.means()))
    }

    /// Lists the losses of both at some steps.
    fn losses(&self) -> String {
        let last =
            self.runs.iter().filter_map(|run| run.record.steps).map(|steps| steps.1).max().unwrap_or(0);
        let mut steps: Vec<u64> = (1..=ROWS).map(|row| last * row / ROWS).filter(|step| *step > 0).collect();
        steps.dedup();
        if steps.is_empty() {
            return String::new();
        }
        let mut text = format!(
            "\n{:>8}  {:>10} {:>10}  {:>10} {:>10}\n",
            "step", "train A", "train B", "valid A", "valid B"
        );
        let train = self.runs.each_ref().map(|run| run.record.loss.means());
        let valid = self.runs.each_ref().map(|run| run.record.valid_loss.means());
        for step in steps {
            // A run that has ended has no value there.
            let value = |run: usize, points: &[(f64, f64)]| {
                let end = self.runs[run].record.steps.map_or(0, |steps| steps.1);
                loss(at(points, step as f64).filter(|_| step <= end))
            };
            text += &format!(
                "{step:>8}  {:>10} {:>10}  {:>10} {:>10}\n",
                value(0, &train[0]),
                value(1, &train[1]),
                value(0, &valid[0]),
                value(1, &valid[1])
            );
        }
        text
    }
}
