//! Files of a run, written so that each is there whole or not at all.

use std::fs::{self, File};
use std::path::Path;

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
pub(crate) fn replace(
    path: &Path,
    write: impl FnOnce(&Path) -> Result<(), TrainError>,
) -> Result<(), TrainError> {
    // The extension stays the last part of the name: a store may add its own where it is missing.
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let staged = path.with_file_name(format!(".staged-{name}"));
    let written = write(&staged);
    if written.is_err() {
        let _ = fs::remove_file(&staged);
        return written;
    }
    let synced = File::open(&staged).and_then(|file| file.sync_all());
    let done = synced.and_then(|()| fs::rename(&staged, path));
    done.map_err(|error| TrainError::file(path, "putting the file in place", error))
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
}
