//! burn-train's metric files: one per metric, split and round.
//!
//! They have the layout of burn-train's own logger: `SPLIT/epoch-N/NAME.log` with one value per line. That logger
//! panics if a disk is full, and keeps a thread per file. This one keeps the values that cannot be written, and retries
//! them with the next ones.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use burn::train::logger::MetricLogger;
use burn::train::metric::store::{EpochSummary, MetricsUpdate, Split};
use burn::train::metric::{MetricDefinition, MetricId, NumericEntry};

use crate::files::appended::Appended;
use crate::files::writes::{FailedWrites, Writes};
use crate::output::Output;

/// The folder of the files, in the output folder.
const FOLDER: &str = "metrics";

/// Counts failed writes of the files.
#[derive(Clone, Debug)]
pub(crate) struct MetricWrites(Arc<Mutex<Writes>>);

impl MetricWrites {
    /// With `tells`, failed writes are reported on standard error.
    pub fn new(tells: bool) -> Self {
        Self(Arc::new(Mutex::new(Writes::of(FOLDER, tells))))
    }

    fn note(&self, attempt: io::Result<()>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).note(attempt);
    }

    /// Returns the entry for the report, if an attempt failed.
    pub fn failed(&self) -> Option<FailedWrites> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).failed()
    }
}

/// Writes the files, and keeps each round's final values for summaries.
pub(crate) struct MetricFiles {
    /// Without an output, nothing is written.
    output: Option<Arc<Output>>,
    writes: MetricWrites,
    /// The training round in progress, and its steps so far, whose values stay.
    begun: (usize, u64),
    names: HashMap<MetricId, String>,
    open: HashMap<PathBuf, Appended>,
    finals: HashMap<(String, usize, String), NumericEntry>,
}

impl MetricFiles {
    pub fn new(output: Option<Arc<Output>>, begun: (usize, u64), writes: MetricWrites) -> Self {
        Self { output, writes, begun, names: HashMap::new(), open: HashMap::new(), finals: HashMap::new() }
    }

    fn add(&mut self, update: &MetricsUpdate, round: usize, split: &Split) {
        let Some(output) = &self.output else { return };
        // The path is relative to the output folder, which is renamed after the first update.
        let folder = PathBuf::from(FOLDER).join(split.to_string()).join(format!("epoch-{round}"));
        for metric in &update.entries_numeric {
            let Some(name) = self.names.get(&metric.entry.metric_id) else { continue };
            let path = folder.join(format!("{}.log", name.replace(' ', "_")));
            let kept = match *split == Split::Train && self.begun.0 == round {
                true => self.begun.1,
                false => 0,
            };
            let file = self.open.entry(path).or_insert_with_key(|path| {
                let (output, folder, path) = (output.clone(), folder.clone(), path.clone());
                Appended::later(move || {
                    let current = output.current();
                    fs::create_dir_all(current.join(&folder))?;
                    opened(&current.join(&path), kept)
                })
            });
            file.add(format!("{}\n", metric.entry.serialized_entry.serialized).as_bytes());
        }
    }

    /// Writes all values, including those that could not be written before.
    fn write_out(&mut self) {
        let attempts = self.open.values_mut().map(Appended::write_out);
        let attempt = attempts.fold(Ok(()), Result::and);
        self.writes.note(attempt);
    }
}

impl Drop for MetricFiles {
    fn drop(&mut self) {
        self.write_out();
    }
}

/// Opens a file and keeps only its first `lines` lines.
fn opened(path: &Path, lines: u64) -> io::Result<File> {
    let earlier = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        earlier => earlier?,
    };
    let kept = earlier.split_inclusive(|byte| *byte == b'\n').take(lines as usize);
    let length = kept.filter(|line| line.ends_with(b"\n")).map(<[u8]>::len).sum::<usize>();
    let file = OpenOptions::new().append(true).create(true).open(path)?;
    file.set_len(length as u64)?;
    Ok(file)
}

impl MetricLogger for MetricFiles {
    fn log(&mut self, update: MetricsUpdate, round: usize, split: &Split) {
        self.add(&update, round, split);
        self.write_out();
        for metric in update.entries_numeric {
            if let (Some(name), Some(value @ NumericEntry::Final(_))) =
                (self.names.get(&metric.entry.metric_id), metric.numeric_entry)
            {
                self.finals.insert((name.clone(), round, split.to_string()), value);
            }
        }
    }

    fn read_numeric(&mut self, name: &str, round: usize, split: &Split) -> Result<Vec<NumericEntry>, String> {
        let key = (name.to_string(), round, split.to_string());
        Ok(self.finals.get(&key).cloned().into_iter().collect())
    }

    fn log_metric_definition(&mut self, definition: MetricDefinition) {
        self.names.insert(definition.metric_id, definition.name.to_string());
    }

    /// A split of a round is complete: its files are too, except for what could not be written yet.
    fn log_epoch_summary(&mut self, _: EpochSummary) {
        self.open.retain(|_, file| file.behind() > 0);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use burn::train::metric::store::NumericMetricUpdate;
    use burn::train::metric::{MetricEntry, SerializedEntry};

    use super::*;

    #[test]
    fn values_that_cannot_be_written_are_written_with_the_next_ones() {
        let folder = tempfile::tempdir().unwrap();
        let output = Output::claim(&folder.path().join("run")).unwrap();
        let in_the_way = output.current().join(FOLDER);
        fs::write(&in_the_way, "").unwrap();
        let path = in_the_way.join("train/epoch-1/Loss.log");
        let writes = MetricWrites::new(false);
        let mut files = MetricFiles::new(Some(Arc::new(output)), (1, 0), writes.clone());
        let loss = MetricId::new(Arc::new("Loss".into()));
        files.names.insert(loss.clone(), "Loss".into());
        let mut log = |value: &str| {
            let entry = MetricEntry::new(loss.clone(), SerializedEntry::new(value.into(), value.into()));
            let update = NumericMetricUpdate { entry, numeric_entry: None, running_entry: None };
            files.log(MetricsUpdate::new(Vec::new(), vec![update]), 1, &Split::Train);
        };
        log("1");
        log("2");
        assert_eq!(writes.failed().unwrap().failures, 2);
        fs::remove_file(&in_the_way).unwrap();
        log("3");
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n2\n3\n");
        assert_eq!(writes.failed().map(|failed| (failed.failures, failed.error)), Some((2, None)));
    }

    #[test]
    fn a_round_that_goes_on_keeps_the_values_of_its_steps() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("Loss.log");
        for (there, lines, kept) in
            [("", 3, ""), ("1\n2\n3\n", 2, "1\n2\n"), ("1\n2", 2, "1\n"), ("1\n", 0, "")]
        {
            fs::write(&path, there).unwrap();
            writeln!(opened(&path, lines).unwrap(), "next").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("{kept}next\n"));
        }
    }
}
