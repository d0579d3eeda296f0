//! Writes the file of the best model in the background, and retries a failed write.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::TrainError;
use crate::checkpoint::best;
use crate::checkpoint::best::BEST;
use crate::files::beside::Beside;
use crate::files::writes::{FailedWrites, Writes};

/// Writes the model that it holds, and returns the path.
type Write = Box<dyn FnMut() -> Result<PathBuf, TrainError> + Send>;

/// An attempt: the step, the writer and the result.
type Attempt = Beside<(u64, Write, Result<PathBuf, TrainError>)>;

/// Attempts that the end of a run waits for.
const AT_THE_END: u32 = 2;
/// After a failed attempt, the pause before the next is this many times as long as the attempt.
const REST: u32 = 4;

/// The first rank's file of the best model.
///
/// It writes one model at a time. While one is being written, it keeps the last of the models that arrive. It also
/// keeps a model that could not be written, until a better one arrives.
pub(crate) struct BestFile {
    writes: Writes,
    under_way: Option<(Instant, Attempt)>,
    next: Option<(u64, Write)>,
    /// No retry before this time.
    rests: Option<Instant>,
    /// The path and the step of the weights, once they are written.
    found: Option<(PathBuf, u64)>,
}

impl BestFile {
    /// Starts with the best weights of the run so far and their step, if there are any.
    pub fn new(found: Option<(PathBuf, u64)>, tells: bool) -> Self {
        Self { writes: Writes::of(BEST, tells), under_way: None, next: None, rests: None, found }
    }

    /// Takes the writer of a new best model and its step.
    pub fn put(&mut self, step: u64, write: impl FnMut() -> Result<PathBuf, TrainError> + Send + 'static) {
        self.next = Some((step, Box::new(write)));
        self.rests = None;
        self.poll();
    }

    /// Call at a step boundary: collects the result of an attempt, and starts the next one. Returns whether the file is
    /// being written.
    pub fn poll(&mut self) -> bool {
        if self.under_way.as_ref().is_some_and(|(_, work)| work.is_over()) {
            self.wait();
        }
        if self.under_way.is_none() && self.rests.is_none_or(|until| until <= Instant::now()) {
            self.begin();
        }
        self.under_way.is_some()
    }

    /// Waits for the attempt in progress.
    pub fn wait(&mut self) {
        let Some((began, work)) = self.under_way.take() else { return };
        let (step, write, result) = work.wait();
        match result {
            Ok(path) => {
                self.found = Some((path, step));
                self.writes.note(Ok::<_, TrainError>(()));
            }
            Err(error) => {
                self.writes.note(Err(error));
                self.rests = Some(Instant::now() + REST * began.elapsed().max(Duration::from_millis(1)));
                // A better model takes precedence.
                self.next.get_or_insert((step, write));
            }
        }
    }

    /// Waits until the file is written, or the last attempts have failed.
    pub fn finish(&mut self) {
        self.wait();
        for _ in 0..AT_THE_END {
            self.begin();
            self.wait();
        }
    }

    fn begin(&mut self) {
        let Some((step, mut write)) = self.next.take() else { return };
        let work = move || {
            let result = write();
            (step, write, result)
        };
        self.under_way = Some((Instant::now(), Beside::start(work)));
    }

    /// Makes the found weights the best of the run in this folder, once the run has settled there. Call it while
    /// nothing is being written.
    ///
    /// # Errors
    ///
    /// The weights cannot be put there.
    pub fn settle(&mut self, folder: &Path) -> Result<(), TrainError> {
        let step = self.found().map(|(_, step)| step);
        self.found = best::restore(self.found(), folder)?.zip(step);
        Ok(())
    }

    /// Returns the path and the step of the newest weights.
    pub fn found(&self) -> Option<(&Path, u64)> {
        self.found.as_ref().map(|(path, step)| (path.as_path(), *step))
    }

    /// Returns the entry for the report, if attempts failed.
    pub fn failed(&self) -> Option<FailedWrites> {
        self.writes.failed()
    }
}

impl Drop for BestFile {
    /// The end of the process would leave the file half written.
    fn drop(&mut self) {
        if let Some((_, work)) = self.under_way.take() {
            work.end();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;

    use super::*;

    /// A writer that writes nothing: an attempt reports its name, and ends when the test tells it to.
    struct Disk {
        begun: (Sender<&'static str>, Receiver<&'static str>),
        ends: Vec<Sender<bool>>,
    }

    impl Disk {
        fn new() -> Self {
            Self { begun: channel(), ends: Vec::new() }
        }

        fn put(&mut self, best: &mut BestFile, name: &'static str) {
            let (end, ended) = channel();
            self.ends.push(end);
            let step = self.ends.len() as u64;
            let begun = self.begun.0.clone();
            best.put(step, move || {
                begun.send(name).unwrap();
                match ended.recv().unwrap() {
                    true => Ok(name.into()),
                    false => Err(TrainError::file(name, "writing", "the disk is full")),
                }
            });
        }

        /// Returns which attempt began.
        fn begun(&self) -> &'static str {
            self.begun.1.recv().unwrap()
        }
    }

    #[test]
    fn training_waits_for_no_write_and_the_newest_is_written_last() {
        let (mut best, mut disk) = (BestFile::new(None, false), Disk::new());
        disk.put(&mut best, "first");
        assert_eq!(disk.begun(), "first");
        // These arrive during the write, and only the last of them counts.
        disk.put(&mut best, "second");
        disk.put(&mut best, "third");
        assert!(best.poll() && best.found().is_none());
        disk.ends[0].send(true).unwrap();
        while best.found().is_none() {
            best.poll();
        }
        assert_eq!(disk.begun(), "third");
        disk.ends[2].send(true).unwrap();
        best.finish();
        assert_eq!((best.found(), best.failed()), (Some((Path::new("third"), 3)), None));
        assert!(disk.begun.1.try_recv().is_err());
    }

    #[test]
    fn what_could_not_be_written_is_tried_again_unless_there_is_a_better_one() {
        let (mut best, mut disk) = (BestFile::new(None, false), Disk::new());
        disk.put(&mut best, "first");
        assert_eq!(disk.begun(), "first");
        disk.ends[0].send(false).unwrap();
        disk.ends[0].send(false).unwrap();
        while best.failed().is_none_or(|failed| failed.failures < 2) {
            best.poll();
            thread::yield_now();
        }
        assert_eq!(disk.begun(), "first");
        disk.put(&mut best, "second");
        assert_eq!(disk.begun(), "second");
        disk.ends[1].send(false).unwrap();
        disk.ends[1].send(true).unwrap();
        best.finish();
        assert_eq!(best.found(), Some((Path::new("second"), 2)));
        let failed = best.failed().unwrap();
        assert_eq!((failed.failures, failed.error), (3, None));
    }
}
