//! The folder of a run's checkpoints: which are complete, and which is the newest.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::Manifest;
use crate::disk::{self, Disk, RealDisk, at, name_of};
use crate::error::{CheckpointError, Result};
use crate::file_names::{LATEST, MANIFEST, REMOVED, REPLACED, STAGED_LATEST, STAGING, step_folder, step_of};
use crate::regular::read_small;

/// The maximum size of `latest`, in bytes.
const MAX_LATEST: u64 = 256;

/// A complete checkpoint, as described by its manifest.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    /// The run's updates at the time of the save.
    pub step: u64,
    /// Its folder.
    pub path: PathBuf,
    /// The metric in its manifest, if any.
    pub metric: Option<f64>,
    /// The checkpoint's number in publication order in its folder: the highest is the newest.
    pub sequence: u64,
    /// Whether its numbers and losses are finite, according to its manifest.
    pub sound: bool,
}

impl Saved {
    /// Reads a folder whose manifest must be valid and whose files must exist with their sizes.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let manifest = Manifest::read(path)?;
        for file in &manifest.files {
            let file_path = path.join(&file.name);
            let found = fs::symlink_metadata(&file_path)
                .map_err(|error| CheckpointError::io("inspect", &file_path, error))?;
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

    /// Returns whether a run may resume from it: it is sound, or none of `all` is.
    pub(crate) fn counts_among(&self, all: &[Saved]) -> bool {
        self.sound || !all.iter().any(|other| other.sound)
    }
}

/// The folder `OUTPUT/checkpoints`.
///
/// A checkpoint in it is *complete* if its manifest is valid and all files exist with their sizes. Digests are
/// checked when you [open](crate::Checkpoint::open) it.
#[derive(Clone, Debug)]
pub struct Folder {
    pub(crate) path: PathBuf,
    pub(crate) disk: Arc<dyn Disk>,
}

impl Folder {
    /// Refers to the folder at this path, which need not exist yet. Does not touch the disk.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), disk: Arc::new(RealDisk) }
    }

    /// Uses another implementation of the operations that change the disk, for tests.
    pub fn with_disk(self, disk: Arc<dyn Disk>) -> Self {
        Self { disk, ..self }
    }

    /// Returns the folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the path of a step's checkpoint, which need not exist.
    pub fn checkpoint(&self, step: u64) -> PathBuf {
        self.path.join(step_folder(step))
    }

    /// Returns the complete checkpoints in publication order.
    ///
    /// A missing folder has none. For incomplete checkpoints, see [`incomplete`](Self::incomplete).
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`] if the folder cannot be read, and [`CheckpointError::DanglingLink`] if it is a link to a
    /// folder that does not exist.
    pub fn list(&self) -> Result<Vec<Saved>> {
        let mut saved: Vec<Saved> = self.looked_at()?.into_iter().filter_map(Result::ok).collect();
        saved.sort_by_key(|saved| (saved.sequence, saved.step));
        Ok(saved)
    }

    /// Returns the error of each folder that has a checkpoint's name but is incomplete. No save leaves such
    /// a folder, however it is interrupted: its files were damaged or removed.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`] if the folder cannot be read.
    pub fn incomplete(&self) -> Result<Vec<CheckpointError>> {
        Ok(self.looked_at()?.into_iter().filter_map(Result::err).collect())
    }

    fn looked_at(&self) -> Result<Vec<Result<Saved>>> {
        let mut names = self.names()?;
        names.sort();
        let looked_at = names.iter().filter_map(|name| {
            // A checkpoint that was renamed aside counts until another takes its place.
            let replaced = name.strip_prefix(REPLACED);
            step_of(replaced.unwrap_or(name))?;
            if replaced.is_some_and(|step| self.path.join(step).symlink_metadata().is_ok()) {
                return None;
            }
            Some(Saved::read(&self.path.join(name)))
        });
        Ok(looked_at.collect())
    }

    /// Returns the complete checkpoints that a run may resume from: the [latest](Self::latest) first, then from newest
    /// to oldest. Skips checkpoints that are not [sound](Saved::sound) if any is.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`] if the folder cannot be read.
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

    /// Returns the checkpoint that `latest` names if it is complete, otherwise the newest complete one, if any. Skips
    /// checkpoints that are not [sound](Saved::sound) if any is.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`] if the folder cannot be read.
    pub fn latest(&self) -> Result<Option<Saved>> {
        Ok(self.newest_first()?.into_iter().next())
    }

    /// Returns the step that `latest` names, if any.
    pub(crate) fn named(&self) -> Option<u64> {
        let text = read_small(&self.path.join(LATEST), MAX_LATEST).ok()?;
        step_of(str::from_utf8(&text).ok()?.strip_suffix('\n')?)
    }

    /// Removes what interrupted saves left, and returns the removed paths. Call it after a run has claimed the folder
    /// and while nothing is being saved.
    ///
    /// Removes staging folders and partly removed checkpoints. Restores the name of a checkpoint that was renamed aside
    /// if nothing has taken its place. If `latest` names nothing or an older checkpoint, makes it name the newest sound
    /// complete one. Keeps checkpoints of an unknown format, and a `latest` that names one.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`] if the folder cannot be read or changed.
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

    /// Marks the complete checkpoint of a step as not [sound](Manifest::sound), for a run that finds out later that it
    /// cannot resume from it. Returns whether there was such a checkpoint and it was sound.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`] if the folder cannot be read or changed; the checkpoint then keeps its state.
    pub fn disown(&self, step: u64) -> Result<bool> {
        let Some(saved) = self.list()?.into_iter().find(|saved| saved.step == step && saved.sound) else {
            return Ok(false);
        };
        let manifest = Manifest::read(&saved.path)?.sound(false);
        // If this is interrupted, `clean` removes the folder.
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

    /// Removes a folder that is no longer a checkpoint.
    pub(crate) fn remove(&self, path: &Path) -> Result<()> {
        let point = format!("remove {}", name_of(path));
        at(&point, path, self.disk.remove_dir_all(&point, path))
    }

    /// Removes a checkpoint: renames it first, which makes it stop being one, then removes its files.
    pub(crate) fn remove_checkpoint(&self, saved: &Saved) -> Result<()> {
        let aside = self.path.join(format!("{REMOVED}{}", step_folder(saved.step)));
        if aside.symlink_metadata().is_ok() {
            self.remove(&aside)?;
        }
        let point = format!("rename {} to remove it", name_of(&saved.path));
        at(&point, &saved.path, self.disk.rename(&point, &saved.path, &aside))?;
        self.remove(&aside)
    }

    /// Rejects a link whose target does not exist: a file system that is not mounted holds checkpoints all the same.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::DanglingLink`].
    pub fn require_target(&self) -> Result<()> {
        match fs::read_link(&self.path) {
            Ok(target) if !self.path.exists() => {
                Err(CheckpointError::DanglingLink { path: self.path.clone(), target })
            }
            _ => Ok(()),
        }
    }

    /// Returns the names in the folder, except those that are not UTF-8: this crate writes none.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let io = |error| CheckpointError::io("read the folder", &self.path, error);
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return self.require_target().map(|()| Vec::new());
            }
            Err(error) => return Err(io(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            names.extend(entry.map_err(io)?.file_name().into_string().ok());
        }
        Ok(names)
    }
}

/// Returns whether a name is that of a folder that only an interrupted save leaves.
fn stale(name: &str, prefix: &str) -> bool {
    let Some(step) = name.strip_prefix(prefix).and_then(|name| name.strip_prefix("step-")) else {
        return false;
    };
    let digits = step.bytes().take_while(u8::is_ascii_digit).count();
    digits >= 8 && (step.len() == digits || step[digits..].starts_with('-'))
}

/// Makes `latest` name the checkpoint of a step. At every moment it names the old one or the new one.
pub(crate) fn write_latest(disk: &dyn Disk, folder: &Path, step: u64) -> Result<()> {
    let staged = folder.join(STAGED_LATEST);
    disk::write_file(disk, &staged, format!("{}\n", step_folder(step)).as_bytes())?;
    let point = "rename latest";
    at(point, &staged, disk.rename(point, &staged, &folder.join(LATEST)))?;
    let point = "sync the checkpoints' folder after latest";
    at(point, folder, disk.sync_dir(point, folder))
}
