//! What a list says about a run.

use std::fs::{self, File};
use std::io::{BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use serde::Serialize;

use crate::report_page::finished::Finished;
use crate::report_page::number::duration;
use crate::report_page::record::Record;
use crate::run::{Registries, Run};
use firebrick::output::{RUN, is_abandoned};

/// How a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RunState {
    /// A process trains it, here or on another machine.
    Running,
    /// It made all its updates.
    Finished,
    /// It ended early and was saved: early stopping, or a signal.
    Stopped,
    /// Its process is gone without a report.
    Killed,
    /// Likewise, and no line of its log can be read.
    Damaged,
}

/// A run in a list.
#[derive(Debug, Serialize)]
pub(crate) struct Listed {
    pub folder: PathBuf,
    pub state: RunState,
    /// Why it ended early.
    pub stopped: Option<String>,
    /// `None` if this program cannot read its run file.
    pub task: Option<String>,
    pub model: Option<String>,
    /// Updates made.
    pub steps: u64,
    /// Updates that it was to make, if the run file says so.
    pub total: Option<u64>,
    pub train_loss: Option<f64>,
    pub valid_loss: Option<f64>,
    pub best_valid_loss: Option<f64>,
    pub best_step: Option<u64>,
    /// Seconds since its last line.
    pub age_seconds: Option<u64>,
    #[serde(skip)]
    pub run: Option<Run>,
    #[serde(skip)]
    pub record: Record,
    #[serde(skip)]
    pub report: Option<Finished>,
}

impl Listed {
    /// Reads a run's folder. What is missing or cannot be read stays unknown.
    pub fn read(registries: &Arc<Registries>, folder: &Path) -> Self {
        let run = Run::read_with(registries, &folder.join(RUN), &[""; 0]).ok();
        let log = folder.join("metrics.jsonl");
        let record = match File::open(&log) {
            Ok(file) => Record::read(BufReader::new(file)).ok(),
            Err(error) if error.kind() == ErrorKind::NotFound => Some(Record::default()),
            Err(_) => None,
        };
        let is_damaged = record
            .as_ref()
            .is_none_or(|record| record.steps.is_none() && (record.passed_over > 0 || record.cut_short));
        let record = record.unwrap_or_default();
        let report = fs::read_to_string(folder.join("report.json")).ok();
        // A resumed run still has the report of its earlier part.
        let report = report.and_then(|text| Finished::parse(&text));
        let report =
            report.filter(|report| record.last.as_ref().is_none_or(|last| last.step <= report.steps));
        let stopped = report.as_ref().and_then(|report| report.stopped.clone());
        let state = match (&report, is_abandoned(folder)) {
            (Some(_), _) if stopped.is_some() => RunState::Stopped,
            (Some(_), _) => RunState::Finished,
            (None, false) => RunState::Running,
            (None, true) if is_damaged => RunState::Damaged,
            (None, true) => RunState::Killed,
        };
        let modified =
            fs::metadata(&log).or_else(|_| fs::metadata(folder)).and_then(|about| about.modified());
        let age = modified.ok().and_then(|at| SystemTime::now().duration_since(at).ok());
        let best = record.best_valid.as_ref();
        let logged = record.last.as_ref().map_or(0, |last| last.step);
        let valid_loss = record.last_valid.as_ref().map(|last| last.loss);
        Self {
            folder: folder.into(),
            state,
            stopped,
            task: run.as_ref().map(|run| run.task.name().to_owned()),
            model: run.as_ref().map(|run| match run.model.folder() {
                Some(folder) => {
                    folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned()
                }
                None => run.model.name().to_owned(),
            }),
            steps: logged.max(report.as_ref().map_or(0, |report| report.steps)),
            total: run.as_ref().and_then(|run| run.steps),
            train_loss: record.recent_loss().or(report.as_ref().and_then(|report| report.train_loss)),
            valid_loss: valid_loss.or(report.as_ref().and_then(|report| report.valid_loss)),
            best_valid_loss: report
                .as_ref()
                .and_then(|report| report.best_valid_loss)
                .or(best.map(|best| best.loss)),
            best_step: report.as_ref().and_then(|report| report.best_step).or(best.map(|best| best.step)),
            age_seconds: age.map(|age| age.as_secs()),
            run,
            record,
            report,
        }
    }

    /// Returns the state in a word.
    pub fn state(&self) -> &'static str {
        match self.state {
            RunState::Running => "running",
            RunState::Finished => "finished",
            RunState::Stopped => "stopped",
            RunState::Killed if self.steps == 0 => "no update",
            RunState::Killed => "killed",
            RunState::Damaged => "damaged log",
        }
    }

    /// Returns the updates made, and those to be made.
    pub fn progress(&self) -> String {
        match self.total {
            Some(total) => format!("{}/{total}", self.steps),
            None => self.steps.to_string(),
        }
    }
}

/// Formats a loss, or a dash.
pub(super) fn loss(loss: Option<f64>) -> String {
    loss.map_or("-".into(), |loss| format!("{loss:.4}"))
}

/// Returns a text as one line: a control character, such as a new line in the name of a folder, is written as its escape.
pub(crate) fn one_line(text: &str) -> String {
    let escaped = |letter: char| match letter.is_control() {
        true => letter.escape_default().to_string(),
        false => letter.to_string(),
    };
    text.chars().map(escaped).collect()
}

/// Formats runs as a table, the newest last.
pub(crate) fn table(runs: &[Listed]) -> String {
    let names = ["run", "state", "task", "model", "steps", "train", "best valid", "last line"];
    let row = |run: &Listed| {
        let best = match (run.best_valid_loss, run.best_step) {
            (Some(best), Some(step)) => format!("{best:.4} @ {step}"),
            (best, _) => loss(best),
        };
        // The first of the two units.
        let age = run.age_seconds.map(|seconds| duration(seconds.max(1) as f64));
        let age = age.map(|age| age.split(' ').take(2).collect::<Vec<_>>().join(" ") + " ago");
        [
            run.folder.display().to_string(),
            run.state().into(),
            run.task.clone().unwrap_or_else(|| "?".into()),
            run.model.clone().unwrap_or_else(|| "?".into()),
            run.progress(),
            loss(run.train_loss),
            best,
            age.unwrap_or_default(),
        ]
    };
    let mut rows: Vec<[String; 8]> = vec![names.map(String::from)];
    rows.extend(runs.iter().map(|run| row(run).map(|cell| one_line(&cell))));
    let widths: [usize; 8] =
        std::array::from_fn(|at| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0));
    let line = |row: &[String; 8]| {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}
