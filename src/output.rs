//! The folder that a run writes into, claimed so that no other run writes there too.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use burn::module::Module;
use firebrick_checkpoints::Folder;

use crate::checkpoint::{self, ResumeError};
use crate::console::tell;
use crate::{Resume, TrainError, saving};

/// The weights of the lowest validation loss.
pub(crate) const BEST: &str = "best.safetensors";
/// What marks a folder as that of a run.
const LOG: &str = "metrics.jsonl";
/// Stays in the folder, and marks it as ours also where a run ended before its first step.
const LOCK: &str = ".firebrick.lock";

/// A claimed folder. The claim ends when this is dropped, or with the process.
#[derive(Debug)]
pub(crate) struct Output {
    folder: PathBuf,
    _lock: File,
}

impl Output {
    /// Makes the folder of a new run. A folder in which a run has been is kept under another name,
    /// `NAME-1` or the next number that is free.
    ///
    /// # Errors
    ///
    /// Another run is using the folder, it holds files that are not of a run, or it cannot be
    /// written.
    pub fn claim(folder: &Path) -> Result<Self, TrainError> {
        Self::check(folder)?;
        if folder.join(LOG).exists() {
            let kept = keep_earlier(folder)?;
            tell(&format!("kept the earlier run as {}", kept.display()));
        }
        fs::create_dir_all(folder)
            .map_err(|error| TrainError::file(folder, "making the output folder", error))?;
        let lock = lock(folder)?;
        Ok(Self { folder: folder.into(), _lock: lock })
    }

    /// Claims the folder of a run that is to go on from one of its own checkpoints; `None` where it starts
    /// from the beginning, or from a checkpoint of another folder. What an interrupted save left in it is removed.
    ///
    /// # Errors
    ///
    /// Another run is using the folder, it cannot be written, or there is no such checkpoint.
    pub fn reopen(folder: &Path, resume: &Resume) -> Result<Option<Self>, TrainError> {
        let lock = match folder.join(LOCK).exists() {
            true => Some(lock(folder)?),
            false => None,
        };
        let checkpoints = folder.join(checkpoint::FOLDER);
        if lock.is_some() && checkpoints.is_dir() {
            Folder::new(checkpoints).clean().map_err(ResumeError::from)?;
        }
        let found = resume.find(folder)?;
        let own = found.is_some_and(|checkpoint| is_within(&checkpoint, folder));
        Ok(lock.filter(|_| own).map(|lock| Self { folder: folder.into(), _lock: lock }))
    }

    /// Whether the folder could be claimed, as far as can be told without touching it.
    pub fn check(folder: &Path) -> Result<(), TrainError> {
        let Ok(mut entries) = fs::read_dir(folder) else {
            let nearest = folder.ancestors().find(|parent| parent.exists());
            return match nearest {
                Some(parent) if !parent.is_dir() => {
                    Err(TrainError::file(folder, "making the output folder", "there is a file in its place"))
                }
                _ => Ok(()),
            };
        };
        if [LOG, LOCK].iter().any(|name| folder.join(name).exists()) {
            return lock(folder).map(drop);
        }
        match entries.find_map(Result::ok) {
            None => Ok(()),
            Some(entry) => {
                let found = entry.file_name().to_string_lossy().into_owned();
                Err(TrainError::ForeignOutput { folder: folder.into(), found })
            }
        }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Writes a text beside the model.
    pub fn save_text(&self, name: &str, text: &str) -> Result<(), TrainError> {
        saving::save_text(text, &self.folder.join(name))
    }

    /// Writes a model's parameters, and returns where.
    pub fn save_model<M: Module>(&self, name: &str, model: &M) -> Result<PathBuf, TrainError> {
        let path = self.folder.join(name);
        saving::save_model(model, &path)?;
        Ok(path)
    }
}

/// Whether a path is below a folder, whatever links lead there.
pub(crate) fn is_within(path: &Path, folder: &Path) -> bool {
    match (path.canonicalize(), folder.canonicalize()) {
        (Ok(path), Ok(folder)) => path.starts_with(folder),
        _ => false,
    }
}

/// The exclusive lock of a folder, which the system releases when the process ends, however it does.
fn lock(folder: &Path) -> Result<File, TrainError> {
    let path = folder.join(LOCK);
    let file =
        File::create(&path).map_err(|error| TrainError::file(&path, "locking the output folder", error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(TrainError::OutputInUse(folder.into())),
        Err(TryLockError::Error(error)) => Err(TrainError::file(&path, "locking the output folder", error)),
    }
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
mod tests {
    use super::*;

    #[test]
    fn an_earlier_run_is_kept_under_the_next_free_number() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("run");
        for kept in [None, Some("run-1"), Some("run-2")] {
            drop(Output::claim(&folder).unwrap());
            fs::write(folder.join(LOG), "").unwrap();
            assert!(kept.is_none_or(|name| parent.path().join(name).join(LOG).exists()));
        }
    }

    #[test]
    fn a_folder_in_use_is_refused_and_free_again_afterwards() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("run");
        let claimed = Output::claim(&folder).unwrap();
        fs::write(folder.join(LOG), "").unwrap();
        let error = Output::claim(&folder).unwrap_err().to_string();
        assert!(error.contains("another run"), "{error}");
        drop(claimed);
        Output::claim(&folder).unwrap();
    }

    #[test]
    fn a_run_that_ended_before_its_first_step_leaves_the_folder_usable() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("run");
        let output = Output::claim(&folder).unwrap();
        output.save_text("run.ron", "()").unwrap();
        drop(output);
        Output::claim(&folder).unwrap();
        assert!(!parent.path().join("run-1").exists());
    }

    #[test]
    fn files_that_are_not_of_a_run_are_never_touched() {
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join("run.ron"), "mine").unwrap();
        let error = Output::claim(parent.path()).unwrap_err().to_string();
        assert!(error.contains("run.ron") && error.contains("choose another"), "{error}");
        assert_eq!(fs::read_to_string(parent.path().join("run.ron")).unwrap(), "mine");
    }
}
