//! burn-train's metric files: one per metric, split and round.
//!
//! They have the layout of burn-train's own logger, `SPLIT/epoch-N/NAME.log` with a value a line. That
//! one panics where a disk is full, and keeps a thread per file; this one ends the run at the next
//! step, saved, with the reason.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use burn::train::Interrupter;
use burn::train::logger::MetricLogger;
use burn::train::metric::store::{EpochSummary, MetricsUpdate, Split};
use burn::train::metric::{MetricDefinition, MetricId, NumericEntry};

use crate::output::Output;

/// Why the files could not be written, once that is so.
pub(crate) type MetricsError = Arc<OnceLock<String>>;

/// Writes the files, and remembers each round's final values for summaries.
pub(crate) struct MetricFiles {
    /// Without one, nothing is written.
    output: Option<Arc<Output>>,
    /// The round of training that goes on, and its steps so far: their values stay.
    begun: (usize, u64),
    interrupter: Interrupter,
    failed: MetricsError,
    names: HashMap<MetricId, String>,
    open: HashMap<PathBuf, File>,
    finals: HashMap<(String, usize, String), NumericEntry>,
}

impl MetricFiles {
    pub fn new(
        output: Option<Arc<Output>>,
        begun: (usize, u64),
        interrupter: Interrupter,
        failed: MetricsError,
    ) -> Self {
        Self {
            output,
            begun,
            interrupter,
            failed,
            names: HashMap::new(),
            open: HashMap::new(),
            finals: HashMap::new(),
        }
    }

    fn write(&mut self, update: &MetricsUpdate, round: usize, split: &Split) -> io::Result<()> {
        let Some(output) = &self.output else { return Ok(()) };
        // A path in the output folder, which is renamed when the run has made an update.
        let folder = PathBuf::from("metrics").join(split.to_string()).join(format!("epoch-{round}"));
        for metric in &update.entries_numeric {
            let Some(name) = self.names.get(&metric.entry.metric_id) else { continue };
            let path = folder.join(format!("{}.log", name.replace(' ', "_")));
            if !self.open.contains_key(&path) {
                let current = output.current();
                fs::create_dir_all(current.join(&folder))?;
                let kept = match *split == Split::Train && self.begun.0 == round {
                    true => self.begun.1,
                    false => 0,
                };
                self.open.insert(path.clone(), opened(&current.join(&path), kept)?);
            }
            if let Some(file) = self.open.get_mut(&path) {
                writeln!(file, "{}", metric.entry.serialized_entry.serialized)?;
            }
        }
        Ok(())
    }
}

/// A file with so many of its first lines, and nothing else.
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
        if let Err(error) = self.write(&update, round, split) {
            self.output = None;
            let reason = format!("the metric files cannot be written: {error}");
            self.interrupter.stop(Some(&reason));
            let _ = self.failed.set(reason);
        }
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

    /// A split of a round is over: its files are complete.
    fn log_epoch_summary(&mut self, _: EpochSummary) {
        self.open.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
