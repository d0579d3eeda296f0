//! Removes checkpoints that only take space.
//!
//! A run that a process uses, here or on another machine, is left alone, and each run keeps its newest checkpoint and
//! its best ones. Whether a low or a high metric is better is not known here, so both ends are kept.

use std::fs;
use std::path::{Path, PathBuf};

use firebrick_checkpoints::{CheckpointError, Folder, Keep};
use serde::Serialize;

use super::folders;
use crate::RunError;
use firebrick::{ResumeError, TrainError};

use firebrick::output::Idle;

/// What can be removed from a run's folder.
#[derive(Debug, Serialize)]
pub(crate) struct Prunable {
    /// The run.
    pub run: PathBuf,
    /// Checkpoints, with their bytes.
    pub checkpoints: Vec<(PathBuf, u64)>,
}

/// Returns what can be removed of the runs in a folder.
///
/// # Errors
///
/// A folder cannot be read.
pub(crate) fn prunable(folder: &Path) -> Result<Vec<Prunable>, RunError> {
    let mut all = Vec::new();
    for run in folders(folder)? {
        if Idle::take(&run).is_none() {
            continue;
        }
        let saved = checkpoints(&run).prunable(&keep()).map_err(unread)?;
        let sized = saved.into_iter().map(|saved| (bytes(&saved.path), saved.path));
        let checkpoints: Vec<_> = sized.map(|(bytes, path)| (path, bytes)).collect();
        if !checkpoints.is_empty() {
            all.push(Prunable { run, checkpoints });
        }
    }
    Ok(all)
}

impl Prunable {
    pub fn bytes(&self) -> u64 {
        self.checkpoints.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Removes it, and returns the removed checkpoints. Removes nothing of a run that was started in the meantime.
    ///
    /// # Errors
    ///
    /// A checkpoint cannot be removed.
    pub fn remove(&self) -> Result<Vec<PathBuf>, RunError> {
        match Idle::take(&self.run) {
            Some(_idle) => Ok(checkpoints(&self.run).prune(&keep()).map_err(unread)?),
            None => Ok(Vec::new()),
        }
    }
}

fn unread(error: CheckpointError) -> RunError {
    TrainError::from(ResumeError::from(error)).into()
}

fn keep() -> Keep {
    Keep::last(1).best(1).either()
}

fn checkpoints(run: &Path) -> Folder {
    Folder::new(run.join("checkpoints"))
}

fn bytes(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|about| about.len()).sum()
}
