//! A run as seen from another process.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::WatchError;
use super::follow::{Follower, LogEvent};
use crate::report_page::finished::Finished;
use crate::report_page::record::Record;
use firebrick::EvaluationNumbers;
use firebrick::observe::log::LogLine;
use firebrick::output::{is_abandoned, is_of_a_run};

/// All that is known about the run.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// The name of the run's folder.
    pub name: String,
    pub record: Record,
    /// The total number of updates, if known.
    pub total: Option<u64>,
    /// The report, once the run has ended.
    pub finished: Option<Finished>,
    /// Whether the run's process is gone without a report.
    pub is_gone: bool,
    /// The time since the last write to the log.
    pub quiet: Option<Duration>,
}

impl Watched {
    /// Returns an error if the run's process is gone without a report.
    pub fn require_process(&self) -> Result<(), WatchError> {
        match self.is_gone {
            true => Err(WatchError::Gone { name: self.name.clone(), updates: self.step() }),
            false => Ok(()),
        }
    }

    /// The number of updates made.
    pub fn step(&self) -> u64 {
        self.record.last.as_ref().map_or(0, |line| line.step)
    }

    /// The estimated seconds until all updates are made, at the average pace so far, including evaluations.
    pub fn remaining(&self) -> Option<f64> {
        let (first, last) = self.record.steps?;
        let made = last.saturating_sub(first) + 1;
        let missing = self.total?.checked_sub(self.step())?;
        (self.record.seconds > 0.0).then(|| self.record.seconds / made as f64 * missing as f64)
    }
}

/// Looks at a run's folder repeatedly.
#[derive(Debug)]
pub(crate) struct Watch {
    folder: PathBuf,
    log: PathBuf,
    report: PathBuf,
    follower: Follower,
    pub watched: Watched,
}

/// What a look at the folder found.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct News {
    /// Whether anything is new.
    pub any: bool,
    /// Whether the log was read again from the start.
    pub restarted: bool,
    /// The newest evaluations, at most 20.
    pub evaluations: Vec<EvaluationNumbers>,
}

/// The maximum number of evaluations reported per look.
const MOST_EVALUATIONS: usize = 20;

impl Watch {
    /// Watches a run that writes into this folder, now or later.
    ///
    /// # Errors
    ///
    /// The folder does not exist, or holds something else than a run: no run would ever start in it.
    pub fn new(folder: &Path, total: Option<u64>) -> Result<Self, WatchError> {
        if !folder.is_dir() {
            return Err(WatchError::NoFolder { folder: folder.into() });
        }
        let is_run = is_of_a_run(folder)
            || ["metrics.jsonl", "report.json"].iter().any(|name| folder.join(name).exists());
        let first = fs::read_dir(folder).ok().and_then(|mut entries| entries.find_map(Result::ok));
        if let Some(entry) = first.filter(|_| !is_run) {
            let found = entry.file_name().to_string_lossy().into_owned();
            return Err(WatchError::NoRun { folder: folder.into(), found });
        }
        let full = folder.canonicalize().unwrap_or_else(|_| folder.into());
        let name = full.file_name().unwrap_or(full.as_os_str()).to_string_lossy().into_owned();
        let log = folder.join("metrics.jsonl");
        Ok(Self {
            folder: folder.into(),
            report: folder.join("report.json"),
            follower: Follower::new(log.clone()),
            log,
            watched: Watched { name, total, ..Watched::default() },
        })
    }

    /// Reads what is new.
    ///
    /// # Errors
    ///
    /// The log exists but cannot be read.
    pub fn look(&mut self) -> Result<News, WatchError> {
        // The report is written last: if it exists, the lines read now are complete.
        let finished = self.newer_report();
        // If the process is gone before these lines are read, it writes no more.
        let is_gone = finished.is_none() && is_abandoned(&self.folder);
        // It may have finished properly in between.
        let finished = if is_gone { self.newer_report() } else { finished };
        let mut news = News::default();
        let record = &mut self.watched.record;
        let looked = self.follower.look(|found| {
            news.any = true;
            match found {
                LogEvent::Restarted => {
                    *record = Record::default();
                    news = News { any: true, restarted: true, ..News::default() };
                }
                LogEvent::PassedOver => record.passed_over += 1,
                LogEvent::Line(line) => {
                    if let LogLine::Valid(line) = &line {
                        news.evaluations.push(line.clone());
                        let surplus = news.evaluations.len().saturating_sub(MOST_EVALUATIONS);
                        news.evaluations.drain(..surplus);
                    }
                    record.add(line);
                }
            }
        });
        looked.map_err(|error| WatchError::Read { path: self.log.clone(), error })?;
        news.any |= finished.is_some();
        self.watched.is_gone = is_gone && finished.is_none();
        self.watched.finished = finished;
        self.watched.quiet =
            modified(&self.log).ok().and_then(|at| SystemTime::now().duration_since(at).ok());
        Ok(news)
    }

    /// The report, if it is newer than the log: an earlier part of the run may have left one.
    fn newer_report(&self) -> Option<Finished> {
        let (report, log) = (modified(&self.report).ok()?, modified(&self.log).ok()?);
        let text = (report >= log).then(|| fs::read_to_string(&self.report).ok())??;
        Finished::parse(&text)
    }
}

fn modified(path: &Path) -> io::Result<SystemTime> {
    fs::metadata(path)?.modified()
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_run_is_followed_from_before_its_first_step_to_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("metrics.jsonl");
        let mut watch = Watch::new(folder.path(), Some(4)).unwrap();
        assert_eq!(watch.look().unwrap(), News::default());
        assert_eq!((watch.watched.step(), watch.watched.remaining()), (0, None));

        let mut text = String::from("{\"kind\":\"train\",\"step\":1,\"loss\":4.0,\"seconds\":2.0}\n");
        fs::write(&log, &text).unwrap();
        assert!(watch.look().unwrap().any);
        assert_eq!((watch.watched.step(), watch.watched.remaining()), (1, Some(6.0)));
        assert!(!watch.look().unwrap().any);

        text += "{\"kind\":\"train\",\"step\":2,\"loss\":3.0,\"seconds\":2.0}\n";
        text += "{\"kind\":\"valid\",\"step\":2,\"loss\":3.5,\"seconds\":1.0}\n";
        fs::write(&log, &text).unwrap();
        let news = watch.look().unwrap();
        assert_eq!(news.evaluations.iter().map(|line| line.loss).collect::<Vec<_>>(), [3.5]);
        assert_eq!((watch.watched.step(), watch.watched.remaining()), (2, Some(5.0)));
        assert!(watch.watched.finished.is_none());

        fs::write(folder.path().join("report.json"), "{\"steps\":2,\"stopped\":\"enough\"}").unwrap();
        watch.look().unwrap();
        assert_eq!(watch.watched.finished.unwrap().stopped.as_deref(), Some("enough"));
    }

    #[test]
    fn the_report_of_an_earlier_part_is_not_the_end() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("report.json"), "{\"steps\":9}").unwrap();
        let log = File::create(folder.path().join("metrics.jsonl")).unwrap();
        log.set_modified(SystemTime::now() + Duration::from_secs(60)).unwrap();
        let mut watch = Watch::new(folder.path(), None).unwrap();
        watch.look().unwrap();
        assert!(watch.watched.finished.is_none());
    }

    #[test]
    fn a_run_that_goes_on_from_a_checkpoint_forgets_what_came_after() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("metrics.jsonl");
        let line = |step: u64| format!("{{\"kind\":\"train\",\"step\":{step},\"loss\":1.0}}\n");
        fs::write(&log, line(1) + &line(2) + &line(3)).unwrap();
        let mut watch = Watch::new(folder.path(), None).unwrap();
        watch.look().unwrap();
        fs::write(&log, line(1)).unwrap();
        let news = watch.look().unwrap();
        assert!(news.restarted);
        assert_eq!(watch.watched.record.loss.points(), [(1.0, 1.0)]);
    }

    #[test]
    fn a_folder_that_is_not_there_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = Watch::new(&folder.path().join("none"), None).unwrap_err().to_string();
        assert!(error.contains("none") && error.contains("output folder"), "{error}");
        fs::write(folder.path().join("notes.txt"), "").unwrap();
        let error = Watch::new(folder.path(), None).unwrap_err().to_string();
        assert!(error.contains("it holds `notes.txt`"), "{error}");
    }
}
