//! Metric files in the layout of burn-train's own logger: `metrics/SPLIT/epoch-N/NAME.log`, one value per line. An epoch
//! is a round of the run.
//!
//! That logger panics if a disk is full, and keeps a thread per file. This one keeps the values that cannot be written,
//! and retries them with the next ones.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{METRICS, Output};
use crate::FailedWrites;
use crate::files::appended::AppendedFile;
use crate::files::staging::require_folder;
use crate::files::writes::Writes;
use crate::observe::numbers::{EvaluationNumbers, EvaluationProgress, Round, StepNumbers};
use crate::observe::observer::Observer;
use crate::observe::readings::{Metered, Meters};

const TRAIN: &str = "train";
const VALID: &str = "valid";

/// The time after which values that are held back are written.
const HELD: Duration = Duration::from_secs(1);

/// Writes the files. Values of steps are held back for up to a second.
pub(crate) struct MetricFiles {
    output: Arc<Output>,
    writes: Writes,
    steps: Meters,
    evaluations: Meters,
    round: usize,
    /// The round that the run continues in, and its steps so far, whose values stay.
    begun: (usize, u64),
    open: HashMap<PathBuf, AppendedFile>,
    written: Instant,
}

impl MetricFiles {
    /// Writes into this output. A run that continues has begun a round, with so many steps: each has a line in each
    /// file, whether it made an update or not. What is there of later steps is of a branch that the run left, and is
    /// removed. With `tells`, failed writes are reported on standard error.
    pub fn new(
        output: Arc<Output>,
        (steps, evaluations): (Meters, Meters),
        begun: (usize, u64),
        tells: bool,
    ) -> Self {
        let mut writes = Writes::of(METRICS, tells);
        // Without a step in this round, its training files are of the other branch as well.
        let trained = begun.0 - usize::from(begun.1 == 0);
        let current = output.current().join(METRICS);
        let removed = remove_after(&current.join(TRAIN), trained);
        if let Err(error) = removed.and(remove_after(&current.join(VALID), begun.0 - 1)) {
            writes.note(Err(error));
        }
        let (open, written) = (HashMap::new(), Instant::now());
        Self { output, writes, steps, evaluations, round: begun.0, begun, open, written }
    }

    fn add(&mut self, split: &str, metered: Vec<Metered>) {
        // The path is relative to the output folder, which is renamed after the first update.
        let folder = PathBuf::from(METRICS).join(split).join(format!("epoch-{}", self.round));
        let is_begun = split == TRAIN && self.begun.0 == self.round;
        let kept = if is_begun { self.begun.1 } else { 0 };
        for (name, entry, _) in metered {
            let path = folder.join(format!("{}.log", name.replace(' ', "_")));
            let file = self.open.entry(path).or_insert_with_key(|path| {
                let (output, folder, path) = (self.output.clone(), folder.clone(), path.clone());
                AppendedFile::later(move || {
                    let current = output.current();
                    require_folder(&current)?;
                    fs::create_dir_all(current.join(&folder))?;
                    opened(&current.join(&path), kept)
                })
            });
            file.add(format!("{}\n", entry.serialized_entry.serialized).as_bytes());
        }
        if self.written.elapsed() >= HELD {
            self.flush();
        }
    }

    /// Writes the files of a split that is complete, and closes them, except for what could not be written yet.
    fn complete(&mut self) {
        self.flush();
        self.open.retain(|_, file| file.behind() > 0);
    }
}

impl Observer for MetricFiles {
    fn round_started(&mut self, round: &Round) {
        self.round = round.number;
    }

    fn step(&mut self, numbers: &StepNumbers) {
        let metered = self.steps.add_step(numbers);
        self.add(TRAIN, metered);
    }

    fn round_trained(&mut self) {
        let metered = self.steps.finish();
        self.add(TRAIN, metered);
        self.complete();
    }

    fn evaluating(&mut self, progress: &EvaluationProgress) {
        let metered = self.evaluations.add_batch(progress);
        self.add(VALID, metered);
    }

    fn evaluated(&mut self, numbers: &EvaluationNumbers) {
        let scores = self.evaluations.add_scores(numbers);
        self.add(VALID, scores);
        let metered = self.evaluations.finish();
        self.add(VALID, metered);
        self.complete();
    }

    fn flush(&mut self) {
        let attempts = self.open.values_mut().map(AppendedFile::write_out);
        let attempt = attempts.fold(Ok(()), Result::and);
        self.writes.note(attempt);
        self.written = Instant::now();
    }

    fn failed_writes(&self) -> Vec<FailedWrites> {
        self.writes.failed().into_iter().collect()
    }
}

/// Removes the folders of the rounds after this one.
fn remove_after(split: &Path, round: usize) -> io::Result<()> {
    let entries = match fs::read_dir(split) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        let number = path.file_name().and_then(|name| name.to_str()?.strip_prefix("epoch-")?.parse().ok());
        if number.is_some_and(|number: usize| number > round) {
            fs::remove_dir_all(path)?;
        }
    }
    Ok(())
}

/// Opens a file and keeps only its first `lines` lines.
fn opened(path: &Path, lines: u64) -> io::Result<File> {
    let earlier = match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        earlier => earlier?,
    };
    let kept = earlier.split_inclusive(|byte| *byte == b'\n').take(lines as usize);
    let length = kept.filter(|line| line.ends_with(b"\n")).map(<[u8]>::len).sum::<usize>();
    let file = OpenOptions::new().append(true).create(true).open(path)?;
    file.set_len(length as u64)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::observe::utilization::Devices;

    #[test]
    fn values_that_cannot_be_written_are_written_with_the_next_ones() {
        let folder = tempfile::tempdir().unwrap();
        let output = Output::claim(&folder.path().join("run")).unwrap();
        let in_the_way = output.current().join(METRICS);
        fs::write(&in_the_way, "").unwrap();
        let path = in_the_way.join("train/epoch-1/Loss.log");
        let mut files = MetricFiles::new(Arc::new(output), meters(), (1, 0), false);
        let mut log = |loss| {
            files.step(&StepNumbers { loss, items: 1, ..StepNumbers::default() });
            files.flush();
            files.failed_writes()
        };
        log(1.0);
        assert_eq!(log(2.0)[0].failures, 2);
        fs::remove_file(&in_the_way).unwrap();
        let failed = log(3.0).remove(0);
        assert_eq!((failed.failures, failed.error), (2, None));
        assert_eq!(fs::read_to_string(&path).unwrap(), "1,1\n2,1\n3,1\n");
    }

    fn meters() -> (Meters, Meters) {
        (Meters::of_steps(false, false, &Devices::default()), Meters::of_evaluations(&[]))
    }

    /// Trains a run whose rounds have two steps, on from a number of rounds and steps. Every loss is `branch`.
    fn trained(output: &Arc<Output>, begun: (usize, u64), rounds: usize, branch: f64) {
        let mut files = MetricFiles::new(output.clone(), meters(), begun, false);
        let (numbers, mut made) = (StepNumbers { loss: branch, items: 1, ..StepNumbers::default() }, begun.1);
        for number in begun.0..=rounds {
            files.round_started(&Round { number, ..Round::default() });
            (made..2).for_each(|_| files.step(&numbers));
            files.round_trained();
            files.evaluating(&EvaluationProgress { loss: Some(branch), items: 1, ..Default::default() });
            files.evaluated(&EvaluationNumbers::default());
            made = 0;
        }
    }

    /// The folder and the lines of each file of the loss.
    fn losses(output: &Output) -> Vec<(String, String)> {
        let mut found = Vec::new();
        for split in [TRAIN, VALID] {
            for entry in fs::read_dir(output.current().join(METRICS).join(split)).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap().to_string();
                let lines = fs::read_to_string(path.join("Loss.log")).unwrap();
                found.push((format!("{split} {name}"), lines.replace('\n', " ")));
            }
        }
        found.sort();
        found
    }

    #[test]
    fn nothing_stays_of_a_branch_that_the_run_left() {
        for (begun, rounds) in [((3, 0), 4), ((3, 1), 4), ((3, 2), 4), ((3, 0), 2), ((1, 0), 1)] {
            let folder = tempfile::tempdir().unwrap();
            let output = Arc::new(Output::claim(&folder.path().join("run")).unwrap());
            trained(&output, (1, 0), 6, 1.0);
            trained(&output, begun, rounds, 2.0);
            let found = losses(&output);
            let names =
                |split: &str| (1..=rounds).map(|round| format!("{split} epoch-{round}")).collect::<Vec<_>>();
            let expected = [names(TRAIN), names(VALID)].concat();
            assert_eq!(
                found.iter().map(|(name, _)| name).collect::<Vec<_>>(),
                expected.iter().collect::<Vec<_>>()
            );
            for (name, lines) in found {
                let round: usize = name.rsplit('-').next().unwrap().parse().unwrap();
                let expected = match (name.starts_with(TRAIN), begun) {
                    (true, (first, 1)) if round == first => "1,1 2,1 2,final ",
                    // Only its evaluation was missing.
                    (true, (first, 2)) if round == first => "1,1 1,1 1,final ",
                    (true, (first, _)) if round < first => "1,1 1,1 1,final ",
                    (true, _) => "2,1 2,1 2,final ",
                    (false, (first, _)) if round < first => "1,1 1,final ",
                    (false, _) => "2,1 2,final ",
                };
                assert_eq!(lines, expected, "{name}, on from {begun:?}");
            }
        }
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
