//! The protocol of one save: all ranks write into a staging folder, and one rename publishes it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{CheckpointError, Result};
use crate::file_names::{MANIFEST, REPLACED, STAGING, TRAINER, step_folder};
use crate::manifest::MAX_TRAINER;
use crate::{Digest, FileEntry, Folder, Manifest, RankState, Saved, rank_files};
use crate::{
    disk::{self, Disk, at},
    folder::write_latest,
};

/// A checkpoint being written: the folder `.staging-step-00001000-ATTEMPT`.
///
/// Every rank gets the same one from [`Folder::staging`]. All ranks [write](Self::write_rank); when all have, rank 0
/// [publishes](Self::publish).
#[derive(Clone, Debug)]
pub struct Staging {
    folder: PathBuf,
    disk: Arc<dyn Disk>,
    step: u64,
    attempt: String,
}

impl Folder {
    /// Starts a save of a step. Every rank must pass the same `attempt`, which must differ between
    /// attempts: 1 to 64 ASCII letters, digits, `.`, `_` or `-`.
    pub fn staging(&self, step: u64, attempt: &str) -> Staging {
        Staging::new(&self.path, self.disk.clone(), step, attempt)
    }
}

impl Staging {
    pub(crate) fn new(folder: &Path, disk: Arc<dyn Disk>, step: u64, attempt: &str) -> Self {
        Self { folder: folder.into(), disk, step, attempt: attempt.into() }
    }

    /// Returns the path of the staging folder.
    pub fn path(&self) -> PathBuf {
        self.folder.join(format!("{STAGING}{}-{}", step_folder(self.step), self.attempt))
    }

    /// Writes and syncs this rank's files, and returns their sizes and digests for the manifest.
    ///
    /// Hashes each file while writing it, and writes all of a rank's files in parallel.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::State`] for a state that cannot be saved, before anything is written;
    /// [`CheckpointError::Io`] if the disk fails. Then [`discard`](Self::discard), or write again.
    pub fn write_rank(&self, state: &RankState) -> Result<Vec<FileEntry>> {
        self.check_attempt()?;
        rank_files::write(&*self.disk, &self.path(), state)
    }

    /// Publishes the files of all ranks as a checkpoint. `manifest` must have the entries of all ranks' files;
    /// `trainer` is the content of `trainer.json`.
    ///
    /// Renames an existing checkpoint of the same step aside, and removes it once `latest` is written. If this
    /// checkpoint is not sound, `latest` keeps naming a sound one.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::State`] for an invalid manifest, [`CheckpointError::NotShared`] if a file does not have the
    /// size that its rank reported, [`CheckpointError::NotSound`] if an unsound checkpoint would replace a sound one,
    /// [`CheckpointError::Occupied`] if it would replace one of an unknown format, [`CheckpointError::Io`] if the disk
    /// fails. All existing checkpoints remain. After the rename the new one exists too, and `latest` may still name the
    /// previous one: publish the step again, or call [`Folder::clean`], to fix that.
    pub fn publish(&self, manifest: Manifest, trainer: &str) -> Result<Saved> {
        self.check_attempt()?;
        let disk = &*self.disk;
        let staging = self.path();
        let path = self.folder.join(step_folder(self.step));
        if !manifest.sound && Saved::read(&path).is_ok_and(|there| there.sound) {
            return Err(CheckpointError::NotSound { path });
        }
        let manifest = self.completed(manifest, trainer)?;
        let aside = self.folder.join(format!("{REPLACED}{}", step_folder(self.step)));
        for there in [&path, &aside] {
            if let Some(found) = Manifest::unknown_format(there) {
                return Err(CheckpointError::Occupied { path: there.clone(), found });
            }
        }
        for file in manifest.files.iter().filter(|file| file.name != TRAINER) {
            check_shared(&staging.join(&file.name), file.bytes)?;
        }
        disk::write_file(disk, &staging.join(TRAINER), trainer.as_bytes())?;
        disk::write_file(disk, &staging.join(MANIFEST), &manifest.to_json())?;
        let point = "sync the staging folder";
        at(point, &staging, disk.sync_dir(point, &staging))?;

        let replaces = path.symlink_metadata().is_ok();
        if replaces {
            self.remove_aside(&aside)?;
            let point = "rename the checkpoint that is replaced";
            at(point, &path, disk.rename(point, &path, &aside))?;
        }
        let point = "rename the staging folder";
        if let Err(error) = disk.rename(point, &staging, &path) {
            if replaces {
                // If this fails too, the old checkpoint is still found under its current name.
                let _ = disk.rename("rename the replaced checkpoint back", &aside, &path);
            }
            return Err(CheckpointError::io(point, &staging, error));
        }
        let point = "sync the checkpoints' folder after the rename";
        at(point, &self.folder, disk.sync_dir(point, &self.folder))?;
        let Manifest { metric, sequence, sound, .. } = manifest;
        let saved = Saved { step: self.step, path, metric, sequence, sound };
        if saved.counts_among(&Folder::new(&self.folder).list()?) {
            write_latest(disk, &self.folder, self.step)?;
        }
        // The checkpoint is safe. If this fails, the next `prune` or `clean` retries.
        let _ = self.remove_aside(&aside);
        Ok(saved)
    }

    /// Removes the staging folder, after an error. A missing folder counts as removed.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`]; [`Folder::clean`] tries again.
    pub fn discard(&self) -> Result<()> {
        self.check_attempt()?;
        let path = self.path();
        if path.symlink_metadata().is_err() {
            return Ok(());
        }
        let point = "remove the staging folder";
        at(point, &path, self.disk.remove_dir_all(point, &path))
    }

    /// Adds the trainer's file to the manifest and checks it.
    fn completed(&self, mut manifest: Manifest, trainer: &str) -> Result<Manifest> {
        let wrong = |expected: String, found: String| CheckpointError::state(MANIFEST, expected, found);
        if manifest.step != self.step {
            return Err(wrong(format!("step {}", self.step), manifest.step.to_string()));
        }
        if trainer.len() as u64 > MAX_TRAINER {
            let found = format!("{} bytes", trainer.len());
            return Err(CheckpointError::state(TRAINER, format!("at most {MAX_TRAINER} bytes"), found));
        }
        manifest.metric = manifest.metric.filter(|metric| metric.is_finite());
        // Also when replacing this step's checkpoint: the last published is the newest.
        let newest = Folder::new(&self.folder).list()?.last().map_or(0, |saved| saved.sequence);
        manifest.sequence = newest.saturating_add(1);
        manifest.files.push(FileEntry {
            name: TRAINER.into(),
            bytes: trainer.len() as u64,
            sum: Digest::of(trainer.as_bytes()),
        });
        manifest.files.sort_by(|a, b| a.name.cmp(&b.name));
        manifest.check().map_err(|(expected, found)| wrong(expected, found))?;
        Ok(manifest)
    }

    /// Checks the attempt, which becomes part of a folder's name.
    fn check_attempt(&self) -> Result<()> {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if (1..=64).contains(&self.attempt.len()) && self.attempt.chars().all(plain) {
            return Ok(());
        }
        let expected = "1 to 64 ASCII letters, digits, `.`, `_` or `-`";
        Err(CheckpointError::state("the attempt of a save", expected, format!("{:?}", self.attempt)))
    }

    fn remove_aside(&self, aside: &Path) -> Result<()> {
        if aside.symlink_metadata().is_err() {
            return Ok(());
        }
        let point = "remove the replaced checkpoint";
        at(point, aside, self.disk.remove_dir_all(point, aside))
    }
}

/// Checks that a rank's file is visible here with the size that the rank reported.
fn check_shared(path: &Path, expected: u64) -> Result<()> {
    let found = match path.symlink_metadata() {
        Ok(metadata) if metadata.is_file() && metadata.len() == expected => return Ok(()),
        Ok(metadata) if metadata.is_file() => format!("one of {} bytes", metadata.len()),
        Ok(_) => "something else".into(),
        Err(error) => error.to_string(),
    };
    Err(CheckpointError::NotShared { path: path.into(), expected, found })
}
