//! All that is wrong with a checkpoint, for people to look at.

use std::fs;
use std::path::{Path, PathBuf};

use crate::examine::examine;
use crate::file_names::MANIFEST;
use crate::{CheckpointError, Manifest};

/// What [`verify`] found.
#[derive(Debug)]
pub struct Report {
    /// What the manifest says, if it can be believed.
    pub manifest: Option<Manifest>,
    /// Every file that is wrong, or what is wrong with all together.
    pub problems: Vec<CheckpointError>,
    /// What is in the folder and not in the manifest. It is never read.
    pub strays: Vec<PathBuf>,
}

impl Report {
    /// Whether the checkpoint can be opened.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Checks a checkpoint as [`Checkpoint::open`](crate::Checkpoint::open) does, and tells every file that is wrong,
/// not only the first. `progress` is told bytes checked, of all.
pub fn verify(path: &Path, progress: impl Fn(u64, u64) + Sync) -> Report {
    let problems = examine(path, &progress).err().unwrap_or_default();
    let manifest = Manifest::read(path).ok();
    let known = |name: &std::ffi::OsStr| {
        let files = manifest.iter().flat_map(|manifest| &manifest.files);
        name == MANIFEST || files.into_iter().any(|file| name == file.name.as_str())
    };
    // Without a manifest nothing can be said of the other files.
    let entries = manifest.as_ref().and_then(|_| fs::read_dir(path).ok()).into_iter().flatten().flatten();
    let mut strays: Vec<PathBuf> =
        entries.filter(|entry| !known(&entry.file_name())).map(|entry| entry.path()).collect();
    strays.sort();
    Report { manifest, problems, strays }
}
