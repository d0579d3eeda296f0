//! The folder of a run's checkpoints: which are complete, and which is the newest.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{self, Disk, RealDisk, at, name_of};
use crate::error::{CheckpointError, Result};
use crate::file_names::{LATEST, MANIFEST, REMOVED, REPLACED, STAGED_LATEST, STAGING, step_folder, step_of};
use crate::regular::read_small;
use crate::staging::write_latest;
use crate::{Manifest, Staging};

/// The most bytes of `latest`.
const MAX_LATEST: u64 = 256;

/// A complete checkpoint, by what its manifest says.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    /// The updates of the run when it was saved.
    pub step: u64,
    /// Its folder.
    pub path: PathBuf,
    /// How good it is, by its manifest.
    pub metric: Option<f64>,
    /// Which checkpoint of the folder it is, counted as they are published: the highest is the newest.
    pub sequence: u64,
    /// Whether its numbers and losses are finite, by its manifest.
    pub sound: bool,
}

impl Saved {
    /// Of a folder whose manifest is right, and whose files are there with their sizes.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let manifest = Manifest::read(path)?;
        for file in &manifest.files {
            let file_path = path.join(&file.name);
            let found = fs::symlink_metadata(&file_path)
                .map_err(|error| CheckpointError::io("look at", &file_path, error))?;
            if !found.is_file() || found.len() != file.bytes {
                return Err(CheckpointError::Size {
                    path: file_path,
                    expected: file.bytes,
                    found: found.len(),
                });
            }
        }
        let Manifest { step, metric, sequence, sound, .. } = manifest;
        Ok(Self { step, path: path.into(), metric, sequence, sound })
    }

    /// Whether a run may go on from it: it is sound, or none of `all` is.
    pub(crate) fn counts_among(&self, all: &[Saved]) -> bool {
        self.sound || !all.iter().any(|other| other.sound)
    }
}

/// The folder `OUTPUT/checkpoints`.
///
/// A checkpoint in it is *complete* if its manifest is right and all files are there with their sizes. Sums are
/// checked when it is [opened](crate::Checkpoint::open).
#[derive(Clone, Debug)]
pub struct Folder {
    path: PathBuf,
    disk: Arc<dyn Disk>,
}

impl Folder {
    /// The folder of this path, which need not be there yet. Touches nothing.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), disk: Arc::new(RealDisk) }
    }

    /// Does what changes the disk through another implementation, for tests.
    pub fn with_disk(mut self, disk: Arc<dyn Disk>) -> Self {
        self.disk = disk;
        self
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the checkpoint of a step is, if there is one.
    pub fn checkpoint(&self, step: u64) -> PathBuf {
        self.path.join(step_folder(step))
    }

    /// A checkpoint of a step to be written. Every rank must ask with the same `attempt`, which must be another
    /// for each try: 1 to 64 ASCII letters, digits, `.`, `_` or `-`.
    pub fn staging(&self, step: u64, attempt: &str) -> Staging {
        Staging::new(&self.path, self.disk.clone(), step, attempt)
    }

    /// The complete checkpoints, in the order in which they were published.
    ///
    /// A folder that is not there has none. What is not complete is left out: see
    /// [`incomplete`](Self::incomplete).
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`] where the folder cannot be read.
    pub fn list(&self) -> Result<Vec<Saved>> {
        let mut saved: Vec<Saved> = self.looked_at()?.into_iter().filter_map(Result::ok).collect();
        saved.sort_by_key(|saved| (saved.sequence, saved.step));
        Ok(saved)
    }

    /// What is wrong with each folder that has the name of a checkpoint and is not complete. No save leaves such
    /// a folder, however it is interrupted: its files were damaged or removed.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`] where the folder cannot be read.
    pub fn incomplete(&self) -> Result<Vec<CheckpointError>> {
        Ok(self.looked_at()?.into_iter().filter_map(Result::err).collect())
    }

    fn looked_at(&self) -> Result<Vec<Result<Saved>>> {
        let mut names = self.names()?;
        names.sort();
        let looked_at = names.iter().filter_map(|name| {
            // One that was renamed aside counts while nothing has taken its place.
            let replaced = name.strip_prefix(REPLACED);
            step_of(replaced.unwrap_or(name))?;
            if replaced.is_some_and(|step| self.path.join(step).symlink_metadata().is_ok()) {
                return None;
            }
            Some(Saved::read(&self.path.join(name)))
        });
        Ok(looked_at.collect())
    }

    /// The complete checkpoints that a run may go on from, the [latest](Self::latest) first, and then the newer before
    /// the older. Those that are not [sound](Saved::sound) are left out where any is.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`] where the folder cannot be read.
    pub fn newest_first(&self) -> Result<Vec<Saved>> {
        let mut saved = self.list()?;
        let sound = saved.iter().any(|saved| saved.sound);
        saved.retain(|saved| saved.sound == sound);
        saved.reverse();
        let named = self.named();
        if let Some(at) = saved.iter().position(|saved| Some(saved.step) == named) {
            saved[..=at].rotate_right(1);
        }
        Ok(saved)
    }

    /// What `latest` names if that is complete, else the newest complete one, if there is one. A checkpoint that is
    /// not [sound](Saved::sound) is passed over for one that is.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`] where the folder cannot be read.
    pub fn latest(&self) -> Result<Option<Saved>> {
        Ok(self.newest_first()?.into_iter().next())
    }

    /// The step that `latest` names, if it names one.
    pub(crate) fn named(&self) -> Option<u64> {
        let text = read_small(&self.path.join(LATEST), MAX_LATEST).ok()?;
        step_of(str::from_utf8(&text).ok()?.strip_suffix('\n')?)
    }

    /// Removes what interrupted saves left, and tells what was removed: for when a run has claimed the folder
    /// and nothing is being saved.
    ///
    /// Staging folders and checkpoints half removed go; one that was renamed aside gets its name back where
    /// nothing has taken its place; and `latest` is made to name the newest complete checkpoint that is sound where
    /// it names none, or an older one. What is of a format that is not known stays, also as what `latest` names.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`] where the folder cannot be read or changed.
    pub fn clean(&self) -> Result<Vec<PathBuf>> {
        let mut removed = Vec::new();
        for name in self.names()? {
            let path = self.path.join(&name);
            if stale(&name, STAGING) || stale(&name, REMOVED) {
                self.remove(&path)?;
                removed.push(path);
            } else if name == STAGED_LATEST {
                let point = "remove a stale latest";
                at(point, &path, self.disk.remove_file(point, &path))?;
                removed.push(path);
            } else if let Some(step) = name.strip_prefix(REPLACED).filter(|step| step_of(step).is_some()) {
                let place = self.path.join(step);
                if place.symlink_metadata().is_err() {
                    let point = "rename a replaced checkpoint back";
                    at(point, &path, self.disk.rename(point, &path, &place))?;
                } else if Saved::read(&place).is_ok() && Manifest::unknown_format(&path).is_none() {
                    self.remove(&path)?;
                    removed.push(path);
                }
            }
        }
        self.repair_latest()?;
        Ok(removed)
    }

    fn repair_latest(&self) -> Result<()> {
        let mut saved = self.list()?;
        let newest = saved.iter().rposition(|one| one.counts_among(&saved));
        let newest = newest.map(|at| saved.swap_remove(at));
        let path = self.path.join(LATEST);
        let named = self.named();
        if named.is_some_and(|step| Manifest::unknown_format(&self.checkpoint(step)).is_some()) {
            return Ok(());
        }
        match newest {
            Some(newest) if named == Some(newest.step) => Ok(()),
            Some(newest) => write_latest(&*self.disk, &self.path, newest.step),
            None if path.symlink_metadata().is_ok() => {
                let point = "remove a latest that names nothing";
                at(point, &path, self.disk.remove_file(point, &path))
            }
            None => Ok(()),
        }
    }

    /// Marks the complete checkpoint of a step as not [sound](Manifest::sound), where there is one: for a run that
    /// finds out only later that it cannot go on from it. Whether it was there, and sound until now.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`] where the folder cannot be read or changed: the checkpoint is then as it was.
    pub fn disown(&self, step: u64) -> Result<bool> {
        let Some(saved) = self.list()?.into_iter().find(|saved| saved.step == step && saved.sound) else {
            return Ok(false);
        };
        let manifest = Manifest::read(&saved.path)?.sound(false);
        // A folder that `clean` removes where this ends in between.
        let staging = self.path.join(format!("{STAGING}{}-disowned", step_folder(step)));
        let staged = staging.join(MANIFEST);
        if staging.symlink_metadata().is_ok() {
            self.remove(&staging)?;
        }
        let disk = &*self.disk;
        disk::create_folder(disk, &staging)?;
        disk::write_file(disk, &staged, &manifest.to_json())?;
        let point = "rename the manifest of a checkpoint that is not sound";
        at(point, &staged, disk.rename(point, &staged, &saved.path.join(MANIFEST)))?;
        let point = "sync the folder of a checkpoint that is not sound";
        at(point, &saved.path, disk.sync_dir(point, &saved.path))?;
        self.remove(&staging)?;
        self.repair_latest()?;
        Ok(true)
    }

    /// Removes a folder that is no checkpoint any more.
    pub(crate) fn remove(&self, path: &Path) -> Result<()> {
        let point = format!("remove {}", name_of(path));
        at(&point, path, self.disk.remove_dir_all(&point, path))
    }

    /// Removes a checkpoint: by one rename it is none, and then its files go.
    pub(crate) fn remove_checkpoint(&self, saved: &Saved) -> Result<()> {
        let aside = self.path.join(format!("{REMOVED}{}", step_folder(saved.step)));
        if aside.symlink_metadata().is_ok() {
            self.remove(&aside)?;
        }
        let point = format!("rename {} to remove it", name_of(&saved.path));
        at(&point, &saved.path, self.disk.rename(&point, &saved.path, &aside))?;
        self.remove(&aside)
    }

    /// The names in the folder, those that are no text left out: none of ours is like that.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let io = |error| CheckpointError::io("read the folder", &self.path, error);
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(io(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            names.extend(entry.map_err(io)?.file_name().into_string().ok());
        }
        Ok(names)
    }
}

/// Whether a name is ours, of a folder that only an interrupted save leaves.
fn stale(name: &str, prefix: &str) -> bool {
    let Some(step) = name.strip_prefix(prefix).and_then(|name| name.strip_prefix("step-")) else {
        return false;
    };
    let digits = step.bytes().take_while(u8::is_ascii_digit).count();
    digits >= 8 && (step.len() == digits || step[digits..].starts_with('-'))
}
