//! The runs in a folder: lists, compares and prunes them.
//!
//! ```text
//! mod.rs      finds runs
//! listed.rs   what a list says about a run
//! compared.rs two runs beside each other
//! curves.rs   curves as characters
//! page.rs     two runs on one page, their curves over each other
//! prune.rs    removes checkpoints that only take space
//! ```

mod compared;
mod curves;
mod listed;
mod page;
mod prune;

use std::fs;
use std::path::{Path, PathBuf};

use firebrick::output::is_of_a_run;

use crate::RunError;
use firebrick::TrainError;

pub(crate) use compared::Compared;
pub(crate) use listed::{Listed, one_line, table};
pub(crate) use prune::{Prunable, prunable};

/// How deep folders are searched.
const DEEPEST: usize = 3;

/// Returns the folders of runs in a folder, in order of their paths; the folder itself if it is one.
///
/// # Errors
///
/// The folder cannot be read.
pub(crate) fn folders(folder: &Path) -> Result<Vec<PathBuf>, RunError> {
    let mut found = Vec::new();
    if is_of_a_run(folder) {
        found.push(folder.to_path_buf());
        return Ok(found);
    }
    search(folder, DEEPEST, &mut found)
        .map_err(|error| TrainError::file(folder, "reading the folder of runs", error))?;
    found.sort();
    Ok(found)
}

fn search(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = entry.path();
        let is_hidden = entry.file_name().to_string_lossy().starts_with('.');
        if is_hidden || !path.is_dir() {
            continue;
        }
        if is_of_a_run(&path) {
            found.push(path);
        } else if depth > 1 && !entry.file_type()?.is_symlink() {
            // A folder that cannot be read is not one of this user's runs.
            let _ = search(&path, depth - 1, found);
        }
    }
    Ok(())
}
