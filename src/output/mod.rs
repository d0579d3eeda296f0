//! The output folder of a run, locked so that no other run writes there.
//!
//! ```text
//! mod.rs             the folder: claimed, settled, and what is saved in it whole
//! metric_files.rs    burn-train's metric files
//! timeline_files.rs  the timelines of recorded steps
//! ```

pub(crate) mod metric_files;
pub(crate) mod timeline_files;

use std::fs::{self, DirEntry, File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use burn::module::Module;
use firebrick_checkpoints::Folder;

use crate::checkpoint;
use crate::checkpoint::best;
use crate::checkpoint::best::BEST;
use crate::files::staging;
use crate::observe::log::LOG;
use crate::observe::report::{REPORT, Report};
use crate::observe::tensorboard::{self, host};
use crate::{Resume, ResumeError, TrainError, saving};

/// The run file.
pub const RUN: &str = "run.ron";
/// The lock file. It stays in the folder and marks it as a run's, even if a run ended before its first step.
const LOCK: &str = ".firebrick.lock";
/// What the name of a file begins with that is in a folder for a moment, to see whether it can be.
const PROBE: &str = ".firebrick-probe-";
/// Files that only a run with at least one update leaves.
const OF_A_RUN: [&str; 2] = [BEST, "model.safetensors"];

/// Subfolders with files of a run.
const WITH_FILES: [&str; 3] = ["adapter", "pretrained", best::FOLDER];

/// The folder of burn-train's metric files, in the output folder.
pub(crate) const METRICS: &str = "metrics";

/// What a run writes where it stands: a link in its place would lead the run out of its folder. A link to a folder of
/// [checkpoints](checkpoint::FOLDER) is how they are kept on another disk, and other files are replaced whole, so that only the
/// link goes.
const WRITTEN_IN_PLACE: [&str; 4] = [LOG, "adapter", "pretrained", best::FOLDER];
/// Subfolders of which this is so at any depth.
const OF_LOGS: [&str; 2] = [METRICS, tensorboard::FOLDER];

/// A claimed folder. The claim ends when this is dropped, or with the process.
///
/// An earlier run stays in the folder until the new run has made its first update. Until then, the new run writes to a
/// folder next to it, so a start that fails or is killed changes nothing. If the path is a link to a folder, all of this
/// happens next to the link's target, and the link stays.
#[derive(Debug)]
pub struct Output {
    folder: PathBuf,
    /// Where the run is written until it replaces the earlier one.
    start: Mutex<Option<Start>>,
    /// The run file of a resumed run, until its first update.
    descriptions: Mutex<Vec<(&'static str, String)>>,
    _lock: File,
}

/// A run without an update, next to the earlier one that it will replace.
#[derive(Debug)]
struct Start {
    folder: PathBuf,
    /// Locks the earlier run's folder.
    _earlier: File,
}

impl Output {
    fn of(folder: &Path, start: Option<Start>, lock: File) -> Self {
        Self { folder: folder.into(), start: Mutex::new(start), descriptions: Mutex::default(), _lock: lock }
    }

    /// Claims the folder of a new run. An earlier run [may still be in it](Self::settle).
    ///
    /// # Errors
    ///
    /// Another run is using the folder, it holds files that are not of a run, or it is not writable.
    pub fn claim(folder: &Path) -> Result<Self, TrainError> {
        Self::check(folder, false)?;
        let make = |folder: &Path| {
            fs::create_dir_all(folder)
                .map_err(|error| TrainError::file(folder, "making the output folder", error))
        };
        refuse_links(folder)?;
        if !holds_a_run(folder) {
            make(folder)?;
            let lock = lock(folder)?;
            remove_left(folder)?;
            return Ok(Self::of(folder, None, lock));
        }
        let earlier = lock(folder)?;
        remove_left(folder)?;
        let place = followed(folder);
        let name = place.file_name().unwrap_or_default().to_string_lossy();
        let start = place.with_file_name(format!(".{name}-starting"));
        // The lock of the earlier run's folder proves that no process uses the remains of a killed start.
        if start.join(LOCK).exists() {
            fs::remove_dir_all(&start)
                .map_err(|error| TrainError::file(&start, "removing the files of a killed start", error))?;
        }
        make(&start)?;
        let lock = lock(&start)?;
        let start = Start { folder: start, _earlier: earlier };
        let output = Self::of(folder, Some(start), lock);
        // Windows cannot rename a folder while a file in it is open.
        if cfg!(windows) {
            output.settle()?;
        }
        Ok(output)
    }

    /// Replaces the earlier run, and keeps it as `NAME-1`, or under the next free number. Call it after the first
    /// update. Returns the new name of the earlier run on the first call.
    ///
    /// # Errors
    ///
    /// A folder cannot be renamed.
    pub fn settle(&self) -> Result<Option<PathBuf>, TrainError> {
        let mut start = self.started();
        let Some(Start { folder, .. }) = &*start else { return Ok(None) };
        let place = followed(&self.folder);
        let kept = keep_earlier(&place)?;
        fs::rename(folder, &place)
            .map_err(|error| TrainError::file(folder, "taking the place of the earlier run", error))?;
        *start = None;
        Ok(Some(kept))
    }

    /// Returns whether the run is in its own folder.
    pub fn is_settled(&self) -> bool {
        self.started().is_none()
    }

    fn started(&self) -> MutexGuard<'_, Option<Start>> {
        self.start.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims the folder of a run that resumes from one of its own checkpoints, and removes the remains of an
    /// interrupted save. Returns `None` if the run starts from the beginning, or from a checkpoint of another folder.
    ///
    /// # Errors
    ///
    /// Another run is using the folder, it is not writable, or there is no such checkpoint.
    pub fn reopen(folder: &Path, resume: &Resume) -> Result<Option<Self>, TrainError> {
        let lock = if folder.join(LOCK).exists() { Some(lock(folder)?) } else { None };
        if lock.is_some() {
            refuse_links(folder)?;
            remove_left(folder)?;
        }
        let checkpoints = folder.join(checkpoint::FOLDER);
        if lock.is_some() && checkpoints.is_dir() {
            Folder::new(checkpoints).clean().map_err(ResumeError::from)?;
        }
        let found = resume.find(folder)?;
        let own = found.is_some_and(|checkpoint| is_within(&checkpoint, folder));
        Ok(lock.filter(|_| own).map(|lock| Self::of(folder, None, lock)))
    }

    /// Checks whether the folder can be claimed, or reopened if the run `resumes`. Nothing stays changed: for a moment, there
    /// is a file in it, or in the folder that it would be created in.
    ///
    /// # Errors
    ///
    /// Those of [`claim`](Self::claim).
    pub fn check(folder: &Path, resumes: bool) -> Result<(), TrainError> {
        for linked in [folder, &folder.join(checkpoint::FOLDER)] {
            Folder::new(linked).require_target().map_err(ResumeError::from)?;
        }
        let Ok(entries) = fs::read_dir(folder) else {
            let mut above = folder.ancestors().map(|above| match above.as_os_str().is_empty() {
                true => Path::new("."),
                false => above,
            });
            return match above.find(|above| above.exists()) {
                Some(above) if !above.is_dir() => {
                    Err(TrainError::file(folder, "making the output folder", "there is a file in its place"))
                }
                Some(above) => require_writable(above, folder, "making the output folder"),
                None => Ok(()),
            };
        };
        if [LOG, LOCK].iter().any(|name| folder.join(name).exists()) {
            lock(folder)?;
            require_writable(folder, folder, "writing into the output folder")?;
            // A new run starts beside the earlier one, which is then renamed.
            let place = followed(folder);
            let beside = place.parent().filter(|above| !resumes && holds_a_run(folder) && above.is_dir());
            return beside.map_or(Ok(()), |above| {
                require_writable(above, folder, "keeping the earlier run beside the new one")
            });
        }
        let is_probe = |entry: &DirEntry| entry.file_name().to_string_lossy().starts_with(PROBE);
        match entries.filter_map(Result::ok).find(|entry| !is_probe(entry)) {
            None => require_writable(folder, folder, "writing into the output folder"),
            Some(entry) => {
                let found = entry.file_name().to_string_lossy().into_owned();
                Err(TrainError::ForeignOutput { folder: folder.into(), found })
            }
        }
    }

    /// Returns the folder of the run, which holds it after the first update.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the folder to write into now.
    pub fn current(&self) -> PathBuf {
        self.started().as_ref().map_or_else(|| self.folder.clone(), |start| start.folder.clone())
    }

    /// Keeps a file that describes a resumed run until its [first update](Self::write_descriptions), because the file in
    /// the folder describes the steps made so far.
    pub fn describe_later(&self, name: &'static str, text: String) {
        self.descriptions.lock().unwrap_or_else(PoisonError::into_inner).push((name, text));
    }

    /// Writes the files that were kept, once.
    ///
    /// # Errors
    ///
    /// One cannot be written.
    pub fn write_descriptions(&self) -> Result<(), TrainError> {
        let mut kept = self.descriptions.lock().unwrap_or_else(PoisonError::into_inner);
        kept.drain(..).try_for_each(|(name, text)| self.save_text(name, &text))
    }

    /// Writes a text file into the folder.
    pub fn save_text(&self, name: &str, text: &str) -> Result<(), TrainError> {
        saving::save_text(text, &self.current().join(name))
    }

    /// Writes the report of a run.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn save_report(&self, report: &Report) -> Result<(), TrainError> {
        let text = serde_json::to_string_pretty(report).unwrap_or_default();
        self.save_text(REPORT, &(text + "\n"))
    }

    /// Writes a model's parameters, and returns their path after the first update.
    pub fn save_model<M: Module>(&self, name: &str, model: &M) -> Result<PathBuf, TrainError> {
        saving::save_model(model, &self.current().join(name))?;
        Ok(self.folder.join(name))
    }
}

impl Drop for Output {
    /// Removes the folder of a start that made no update.
    fn drop(&mut self) {
        if let Some(start) = self.started().take() {
            let _ = fs::remove_dir_all(&start.folder);
        }
    }
}

/// Checks that files can be created in `place`, which `doing` something with the output folder needs.
fn require_writable(place: &Path, output: &Path, doing: &'static str) -> Result<(), TrainError> {
    // Other processes may check the same folder.
    let path = place.join(format!("{PROBE}{}", std::process::id()));
    let created = File::options().create(true).write(true).truncate(false).open(&path);
    created.and_then(|_| fs::remove_file(&path)).map_err(|error| {
        let reason =
            format!("no file can be created in {}: {error}; choose another output folder", place.display());
        TrainError::file(output, doing, reason)
    })
}

/// Removes half-written files of a killed run. The folder must be locked.
fn remove_left(folder: &Path) -> Result<(), TrainError> {
    staging::remove_left(folder, &WITH_FILES)
        .map_err(|error| TrainError::file(folder, "removing the partial files of a killed run", error))
}

/// Checks that a run in this folder writes into it alone.
///
/// # Errors
///
/// There is a link where the run would write.
fn refuse_links(folder: &Path) -> Result<(), TrainError> {
    WRITTEN_IN_PLACE.iter().try_for_each(|name| refuse_link(&folder.join(name)))?;
    OF_LOGS.iter().try_for_each(|name| refuse_links_below(&folder.join(name)))
}

fn refuse_links_below(path: &Path) -> Result<(), TrainError> {
    refuse_link(path)?;
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).try_for_each(|path| refuse_links_below(&path))
}

fn refuse_link(path: &Path) -> Result<(), TrainError> {
    match fs::read_link(path) {
        Ok(target) => {
            let reason = format!(
                "this is a link to {}, and a run writes into its own folder alone: remove the link, or put what it names in its place",
                target.display()
            );
            Err(TrainError::file(path, "writing", reason))
        }
        Err(_) => Ok(()),
    }
}

/// Returns whether the folder holds a run with at least one update.
fn holds_a_run(folder: &Path) -> bool {
    let has_steps = fs::metadata(folder.join(LOG)).is_ok_and(|log| log.len() > 0);
    let has_files = OF_A_RUN.iter().any(|name| folder.join(name).is_file());
    has_steps || has_files || folder.join(checkpoint::FOLDER).is_dir()
}

/// Returns whether a checkpoint belongs to the run in a folder. Follows links: the folder `checkpoints` may itself be a
/// link to another disk.
pub(crate) fn is_within(checkpoint: &Path, folder: &Path) -> bool {
    let Ok(checkpoint) = checkpoint.canonicalize() else { return false };
    let places = [folder.to_path_buf(), folder.join(checkpoint::FOLDER)];
    places.iter().filter_map(|place| place.canonicalize().ok()).any(|place| checkpoint.starts_with(place))
}

/// Locks a folder exclusively. The system releases the lock when the process ends in any way. The lock file contains
/// the host and the process id.
fn lock(folder: &Path) -> Result<File, TrainError> {
    let path = folder.join(LOCK);
    refuse_link(&path)?;
    let failed = |error| TrainError::file(&path, "locking the output folder", error);
    let mut file = File::options().create(true).write(true).truncate(false).open(&path).map_err(failed)?;
    let asked = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => break,
            // A process that watches the run takes the lock now and then, for a moment.
            Err(TryLockError::WouldBlock) if asked.elapsed() < WATCHED => thread::sleep(WATCHED / 20),
            Err(TryLockError::WouldBlock) => return Err(TrainError::OutputInUse(folder.into())),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
    }
    let owner = format!("{} {}\n", host(), std::process::id());
    file.set_len(0).and_then(|()| file.write_all(owner.as_bytes())).map_err(failed)?;
    Ok(file)
}

/// A watcher releases the lock within this time.
const WATCHED: Duration = Duration::from_millis(200);

/// Returns whether a run had this folder, and its process is gone. Returns false for a process on another machine,
/// whose lock may not be visible here.
pub fn is_abandoned(folder: &Path) -> bool {
    let Ok(mut file) = File::open(folder.join(LOCK)) else { return false };
    let mut owner = String::new();
    let is_ours = file.read_to_string(&mut owner).is_ok()
        && owner.split_whitespace().next().is_some_and(|owner| owner == host());
    is_ours && file.try_lock_shared().is_ok()
}

/// A run's folder that no run uses while this is held.
#[derive(Debug)]
pub struct Idle {
    _lock: File,
}

impl Idle {
    /// Takes the folder of a run, if no process uses it. Returns `None` for a run of another machine, whose lock may not
    /// be visible here, and for a folder that is not a run's.
    pub fn take(folder: &Path) -> Option<Self> {
        if !is_abandoned(folder) {
            return None;
        }
        let lock = File::options().write(true).open(folder.join(LOCK)).ok()?;
        lock.try_lock().ok()?;
        Some(Self { _lock: lock })
    }
}

/// Returns whether a run has, or had, this folder.
pub fn is_of_a_run(folder: &Path) -> bool {
    folder.join(LOCK).is_file() || (folder.join(RUN).is_file() && holds_a_run(folder))
}

/// Returns the folder that a path names, which is the target if the path is a link.
fn followed(path: &Path) -> PathBuf {
    // Without the trailing slash, with which the system follows the link by itself.
    let path: PathBuf = path.components().collect();
    if path.is_symlink() { path.canonicalize().unwrap_or(path) } else { path }
}

fn keep_earlier(folder: &Path) -> Result<PathBuf, TrainError> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let free = (1..)
        .map(|number| folder.with_file_name(format!("{name}-{number}")))
        .find(|path| path.symlink_metadata().is_err())
        .unwrap_or_else(|| folder.to_path_buf());
    fs::rename(folder, &free).map_err(|error| {
        let doing = "keeping the earlier run under another name, choose another output folder";
        TrainError::file(folder, doing, error)
    })?;
    Ok(free)
}

#[cfg(test)]
mod tests;
