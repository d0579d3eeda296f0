//! Writes a model, a text or another file of a run, so that a reader finds it whole.

use std::fs;
use std::path::Path;

use burn::module::Module;
use burn::store::{ModuleSnapshot, SafetensorsStore};

use crate::TrainError;
use crate::files::sorted_metadata::sort_metadata;

pub use crate::files::staging::{Staged, remove_staged, replace_folder, replace_or};

/// Writes a model's parameters as safetensors, by module path.
pub(crate) fn save_model<M: Module>(model: &M, path: &Path) -> Result<(), TrainError> {
    replace(path, |staged| {
        let mut store = SafetensorsStore::from_file(staged).overwrite(true);
        let saved = model.valid().save_into(&mut store);
        saved.map_err(|error| TrainError::file(path, "saving the model", error))?;
        sort_metadata(staged).map_err(|error| TrainError::file(path, "saving the model", error))
    })
}

/// Writes a text file.
pub fn save_text(text: &str, path: &Path) -> Result<(), TrainError> {
    replace(path, |staged| fs::write(staged, text).map_err(|error| TrainError::file(path, "writing", error)))
}

/// Replaces a file with what `write` writes: see [`replace_or`].
pub fn replace(path: &Path, write: impl FnOnce(&Path) -> Result<(), TrainError>) -> Result<(), TrainError> {
    replace_or(path, write, |error| TrainError::file(path, "putting the file in place", error))
}
