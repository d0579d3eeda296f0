//! Removes checkpoints that only take space.
//!
//! A run that a process uses, here or on another machine, is left alone. Each run keeps its newest checkpoint, its best
//! ones, and those that its run file keeps by their step.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use firebrick_checkpoints::{CheckpointError, Folder, Keep};
use serde::Serialize;

use super::folders;
use crate::run::Registries;
use crate::{CheckpointsConfig, Run, RunError};
use firebrick::output::{Idle, RUN};
use firebrick::{ResumeError, TrainError};

/// What can be removed from a run's folder.
#[derive(Debug, Serialize)]
pub(crate) struct Prunable {
    /// The run.
    pub run: PathBuf,
    /// Checkpoints, with their bytes.
    pub checkpoints: Vec<(PathBuf, u64)>,
}

/// Returns what can be removed of the runs in a folder, and the runs that are in use or cannot be written.
///
/// # Errors
///
/// A folder cannot be read.
pub(crate) fn prunable(
    registries: &Arc<Registries>,
    folder: &Path,
) -> Result<(Vec<Prunable>, Vec<PathBuf>), RunError> {
    let (mut all, mut left_alone) = (Vec::new(), Vec::new());
    for run in folders(folder)? {
        if Idle::take(&run).is_none() {
            left_alone.push(run);
            continue;
        }
        let saved = checkpoints(&run).prunable(&keep(registries, &run)).map_err(unread)?;
        let sized = saved.into_iter().map(|saved| (bytes(&saved.path), saved.path));
        let checkpoints: Vec<_> = sized.map(|(bytes, path)| (path, bytes)).collect();
        if !checkpoints.is_empty() {
            all.push(Prunable { run, checkpoints });
        }
    }
    Ok((all, left_alone))
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
    pub fn remove(&self, registries: &Arc<Registries>) -> Result<Vec<PathBuf>, RunError> {
        match Idle::take(&self.run) {
            Some(_idle) => Ok(checkpoints(&self.run).prune(&keep(registries, &self.run)).map_err(unread)?),
            None => Ok(Vec::new()),
        }
    }
}

fn unread(error: CheckpointError) -> RunError {
    TrainError::from(ResumeError::from(error)).into()
}

/// Returns what a run keeps. Whether a low or a high score is better is not known here, so both ends are kept if a score
/// selects the best model.
fn keep(registries: &Arc<Registries>, run: &Path) -> Keep {
    let Ok(run) = Run::read_with(registries, &run.join(RUN), &[""; 0]) else {
        return Keep::last(1).best(1).either();
    };
    let CheckpointsConfig { keep_best, keep_every, .. } = run.checkpoints;
    let keep = Keep::last(1).best(keep_best.max(1)).every(keep_every.unwrap_or(0));
    if run.best_by.is_some() { keep.either() } else { keep }
}

fn checkpoints(run: &Path) -> Folder {
    Folder::new(run.join("checkpoints"))
}

fn bytes(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|about| about.len()).sum()
}
