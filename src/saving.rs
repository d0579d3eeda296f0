//! Files of a run, written so that each is there whole or not at all.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use burn::module::Module;
use burn::store::{ModuleSnapshot, SafetensorsStore};

use crate::TrainError;

/// Writes a model's parameters as safetensors, by module path.
pub(crate) fn save_model<M: Module>(model: &M, path: &Path) -> Result<(), TrainError> {
    replace(path, |staged| {
        let mut store = SafetensorsStore::from_file(staged).overwrite(true);
        let saved = model.valid().save_into(&mut store);
        saved.map_err(|error| TrainError::file(path, "saving the model", error))
    })
}

/// Writes text.
pub(crate) fn save_text(text: &str, path: &Path) -> Result<(), TrainError> {
    replace(path, |staged| fs::write(staged, text).map_err(|error| TrainError::file(path, "writing", error)))
}

/// Writes beside the target, syncs, and renames over it: what was there stays until the new file
/// is complete.
fn replace(path: &Path, write: impl FnOnce(&Path) -> Result<(), TrainError>) -> Result<(), TrainError> {
    // The extension stays the last part of the name: a store may add its own where it is missing.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let staged = path.with_file_name(format!(".staged-{name}"));
    write(&staged)?;
    let synced = File::open(&staged).and_then(|file| file.sync_all());
    let done = synced.and_then(|()| fs::rename(&staged, path));
    done.map_err(|error| TrainError::file(path, "putting the file in place", error))
}

/// Makes the folder of a new run. A folder in which a run has been is kept under another name,
/// `NAME-1` or the next number that is free.
///
/// Returns where the earlier run is now, if there was one.
pub(crate) fn prepare_output(folder: &Path) -> Result<Option<PathBuf>, TrainError> {
    let kept = match folder.join("metrics.jsonl").exists() {
        true => Some(keep_earlier(folder)?),
        false => None,
    };
    fs::create_dir_all(folder)
        .map_err(|error| TrainError::file(folder, "making the output folder", error))?;
    Ok(kept)
}

fn keep_earlier(folder: &Path) -> Result<PathBuf, TrainError> {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    let free = (1..)
        .map(|number| folder.with_file_name(format!("{name}-{number}")))
        .find(|path| !path.exists())
        .unwrap_or_else(|| folder.to_path_buf());
    fs::rename(folder, &free).map_err(|error| TrainError::file(folder, "keeping the earlier run", error))?;
    Ok(free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_file_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.txt");
        save_text("first", &path).unwrap();
        let failed = replace(&path, |_| Err(TrainError::file("x", "writing", "disk full")));
        assert!(failed.is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), "first");
    }

    #[test]
    fn an_earlier_run_is_kept_under_the_next_free_number() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("run");
        for expected in [None, Some("run-1"), Some("run-2")] {
            let kept = prepare_output(&folder).unwrap();
            assert_eq!(kept, expected.map(|name| parent.path().join(name)));
            fs::write(folder.join("metrics.jsonl"), "").unwrap();
        }
        assert!(parent.path().join("run-1/metrics.jsonl").exists());
    }
}
