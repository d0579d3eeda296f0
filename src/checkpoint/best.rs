//! The weights of the best evaluations, kept as long as a checkpoint refers to them.
//!
//! `best.safetensors` is the best so far. At an older checkpoint another one was the best, so each has a second name,
//! `.best/step-00000024.safetensors`, a hard link that takes no disk space while both name the same file.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use firebrick_checkpoints::Folder;

use crate::files::saving;
use crate::files::saving::require_folder;
use crate::{ResumeError, TrainError, TrainerState, checkpoint};

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

#[cfg(test)]
mod tests {
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
}
