//! The weights of the best evaluations, kept as long as a checkpoint tells of them.
//!
//! `best.safetensors` is the best so far. A run that goes back to an older checkpoint had another one then, so each has
//! a second name, `.best/step-00000024.safetensors`, which costs no disk while both are the same file.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use firebrick_checkpoints::Folder;

use crate::output::BEST;
use crate::{TrainError, TrainerState, checkpoint, saving};

/// The folder of the second names.
const FOLDER: &str = ".best";

fn of_step(run: &Path, step: u64) -> PathBuf {
    run.join(FOLDER).join(format!("step-{step:08}.safetensors"))
}

/// Gives the best weights in a run's folder their second name.
///
/// # Errors
///
/// It cannot be made.
pub(crate) fn remember(run: &Path, step: u64) -> Result<(), TrainError> {
    let folder = run.join(FOLDER);
    fs::create_dir_all(&folder).map_err(|error| TrainError::file(&folder, "making the folder", error))?;
    link(&run.join(BEST), &of_step(run, step))
}

/// The weights of the best evaluation of a run as it was at a checkpoint; `None` where they are gone. A folder of an
/// older version has only one.
pub(crate) fn find(run: &Path, step: u64) -> Option<PathBuf> {
    let (own, best) = (of_step(run, step), run.join(BEST));
    if own.is_file() {
        return Some(own);
    }
    (!run.join(FOLDER).exists() && best.is_file()).then_some(best)
}

/// Makes these weights, found in this folder or in another run's, the best of a run; without any, it has none.
///
/// # Errors
///
/// They cannot be put there.
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

/// Forgets the weights that neither the run nor one of its checkpoints tells of. None may be under way.
pub(crate) fn forget_others(run: &Path, best: Option<u64>) {
    let checkpoints = Folder::new(run.join(checkpoint::FOLDER)).list().unwrap_or_default();
    let of_checkpoint = |path: &Path| {
        let state = TrainerState::parse(&fs::read_to_string(path.join("trainer.ron")).ok()?).ok()?;
        state.progress.best.map(|best| best.step)
    };
    let told = checkpoints.iter().filter_map(|saved| of_checkpoint(&saved.path));
    let kept: BTreeSet<_> = told.chain(best).map(|step| of_step(run, step)).collect();
    // What cannot be removed now is removed later.
    for entry in fs::read_dir(run.join(FOLDER)).into_iter().flatten().flatten() {
        if !kept.contains(&entry.path()) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// A second name of a file, or a copy of it where the file system has no second names.
fn link(from: &Path, to: &Path) -> Result<(), TrainError> {
    if is_same_file(from, to) {
        return Ok(());
    }
    saving::replace(to, |staged| {
        // What is staged is a file already, and a second name needs a free one.
        let linked = fs::remove_file(staged).and_then(|()| fs::hard_link(from, staged));
        let linked = linked.or_else(|_| fs::copy(from, staged).map(drop));
        linked.map_err(|error| TrainError::file(to, "keeping the best weights", error))
    })
}

/// Whether both are names of one file, of which a rename would leave both.
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
        forget_others(run, Some(8));
        assert_eq!(names(run), ["step-00000008.safetensors"]);
        assert_eq!(restore(None, run).unwrap(), None);
        assert!(!best.exists());
        // Into the folder of another run.
        let other = tempfile::tempdir().unwrap();
        restore(Some((&earlier, 8)), other.path()).unwrap();
        assert_eq!(names(other.path()), names(run));
    }
}
