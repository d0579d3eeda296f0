//! The weights of the best evaluations: written in the background, and kept as long as a checkpoint refers to them.
//!
//! `best.safetensors` is the best so far. At an older checkpoint another one was the best, so each has a second name,
//! `.best/step-00000024.safetensors`, a hard link that takes no disk space while both name the same file.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use firebrick_checkpoints::Folder;

use crate::beside::Beside;
use crate::files::staging::require_folder;
use crate::files::writes::{FailedWrites, Writes};
use crate::{ResumeError, TrainError, TrainerState, checkpoint, saving};

/// The weights of the best evaluation.
pub const BEST: &str = "best.safetensors";

/// The folder with the second names.
pub(crate) const FOLDER: &str = ".best";
/// How they begin. What is being written there begins otherwise.
const PREFIX: &str = "step-";

fn of_step(run: &Path, step: u64) -> PathBuf {
    run.join(FOLDER).join(format!("{PREFIX}{step:08}.safetensors"))
}

/// Gives the best weights in a run's folder their second name.
///
/// # Errors
///
/// The name cannot be created.
pub(crate) fn remember(run: &Path, step: u64) -> Result<(), TrainError> {
    let folder = run.join(FOLDER);
    let made = require_folder(run).and_then(|()| fs::create_dir_all(&folder));
    made.map_err(|error| TrainError::file(&folder, "making the folder", error))?;
    link(&run.join(BEST), &of_step(run, step))
}

/// Finds the best weights of a run at a checkpoint; `None` if they are gone. A folder of an older version has only one
/// file.
pub(crate) fn find(run: &Path, step: u64) -> Option<PathBuf> {
    let (own, best) = (of_step(run, step), run.join(BEST));
    if own.is_file() {
        return Some(own);
    }
    (!run.join(FOLDER).exists() && best.is_file()).then_some(best)
}

/// Makes these weights, from this folder or another run's, the best of a run. With `None` the run has no best weights.
///
/// # Errors
///
/// The weights cannot be put there.
pub(crate) fn restore(found: Option<(&Path, u64)>, run: &Path) -> Result<Option<PathBuf>, TrainError> {
    let best = run.join(BEST);
    let Some((weights, step)) = found else {
        if best.is_file() {
            let removed = fs::remove_file(&best);
            removed.map_err(|error| TrainError::file(&best, "removing what was best later", error))?;
        }
        return Ok(None);
    };
    if weights != best {
        link(weights, &best)?;
    }
    remember(run, step)?;
    Ok(Some(best))
}

/// Removes the weights that neither the run nor one of its checkpoints refers to. Call it while no save is in progress.
pub(crate) fn forget_others(run: &Path, best: Option<u64>) {
    // If the checkpoints cannot be listed, any weights may belong to one of them.
    let Ok(checkpoints) = Folder::new(run.join(checkpoint::FOLDER)).list() else { return };
    let mut kept: BTreeSet<_> = best.into_iter().map(|step| of_step(run, step)).collect();
    for saved in checkpoints {
        match TrainerState::peek(&saved.path) {
            Ok(state) => kept.extend(state.progress.best.map(|best| of_step(run, best.step))),
            // Likewise.
            Err(ResumeError::NeedsRon { .. }) => return,
            Err(_) => {}
        }
    }
    // Ignores a file that cannot be removed: the next call tries again.
    for entry in fs::read_dir(run.join(FOLDER)).into_iter().flatten().flatten() {
        let is_of_step = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        if is_of_step && !kept.contains(&entry.path()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Hard-links a file, or copies it if the file system has no hard links.
fn link(from: &Path, to: &Path) -> Result<(), TrainError> {
    if is_same_file(from, to) {
        return Ok(());
    }
    saving::replace(to, |staged| {
        // The staged file exists already, and a hard link needs a free name.
        let linked = fs::remove_file(staged).and_then(|()| fs::hard_link(from, staged));
        let linked = linked.or_else(|_| fs::copy(from, staged).map(drop));
        linked.map_err(|error| TrainError::file(to, "keeping the best weights", error))
    })
}

/// Returns whether both are names of the same file, in which case a rename would do nothing.
#[cfg(unix)]
fn is_same_file(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
    id(one).is_some_and(|one| Some(one) == id(other))
}

#[cfg(not(unix))]
fn is_same_file(one: &Path, other: &Path) -> bool {
    one == other
}

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
        self.found = restore(self.found(), folder)?.zip(step);
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

    fn names(run: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(run.join(FOLDER)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names.into_iter().map(|name| name.into_string().unwrap()).collect()
    }

    #[test]
    fn each_best_is_there_until_nothing_tells_of_it() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path();
        let best = run.join(BEST);
        let save = |step: u64| {
            saving::save_text(&step.to_string(), &best).unwrap();
            remember(run, step).unwrap();
        };
        fs::write(&best, "0").unwrap();
        assert_eq!(find(run, 8), Some(best.clone()), "of an older version");
        save(8);
        save(16);
        assert_eq!(fs::read_to_string(find(run, 8).unwrap()).unwrap(), "8");
        assert_eq!(find(run, 9), None);
        let earlier = find(run, 8).unwrap();
        assert_eq!(restore(Some((&earlier, 8)), run).unwrap(), Some(best.clone()));
        assert_eq!(fs::read_to_string(&best).unwrap(), "8");
        let staged = run.join(FOLDER).join(".staged-step-00000024.safetensors");
        fs::write(&staged, "").unwrap();
        forget_others(run, Some(8));
        assert!(staged.exists(), "another thread is writing it");
        fs::remove_file(staged).unwrap();
        assert_eq!(names(run), ["step-00000008.safetensors"]);
        assert_eq!(restore(None, run).unwrap(), None);
        assert!(!best.exists());
        // Restores into another run's folder.
        let other = tempfile::tempdir().unwrap();
        restore(Some((&earlier, 8)), other.path()).unwrap();
        assert_eq!(names(other.path()), names(run));
    }

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
