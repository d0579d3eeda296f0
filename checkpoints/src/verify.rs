//! Reports everything wrong with a checkpoint, for people.

use std::fs;
use std::path::{Path, PathBuf};

use crate::examine::examine;
use crate::file_names::MANIFEST;
use crate::{CheckpointError, Manifest};

/// The result of [`verify`].
#[derive(Debug)]
pub struct Report {
    /// The manifest, if it is valid.
    pub manifest: Option<Manifest>,
    /// The errors of single files, or of all files together.
    pub problems: Vec<CheckpointError>,
    /// Entries of the folder that the manifest does not name. They are never read.
    pub strays: Vec<PathBuf>,
}

impl Report {
    /// Returns whether the checkpoint can be opened.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Checks a checkpoint like [`Checkpoint::open`](crate::Checkpoint::open), but reports every wrong file,
/// not only the first. Calls `progress` with the bytes checked so far and the total.
pub fn verify(path: &Path, progress: impl Fn(u64, u64) + Sync) -> Report {
    let show = |done, all| {
        progress(done, all);
        true
    };
    let problems = examine(path, &show).err().unwrap_or_default();
    let manifest = Manifest::read(path).ok();
    let known = |name: &std::ffi::OsStr| {
        let files = manifest.iter().flat_map(|manifest| &manifest.files);
        name == MANIFEST || files.into_iter().any(|file| name == file.name.as_str())
    };
    // Without a manifest, no other file can be judged.
    let entries = manifest.as_ref().and_then(|_| fs::read_dir(path).ok()).into_iter().flatten().flatten();
    let mut strays: Vec<PathBuf> =
        entries.filter(|entry| !known(&entry.file_name())).map(|entry| entry.path()).collect();
    strays.sort();
    Report { manifest, problems, strays }
}
