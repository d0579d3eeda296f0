//! A checked checkpoint, open for reading.

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::examine::examine;
use crate::{Manifest, Tensors};

/// A complete checkpoint that passed all checks: every file has the size and digest of the manifest, and the slices
/// form whole tensors.
///
/// Tensors stay on the disk until you read them.
#[derive(Debug)]
pub struct Checkpoint {
    pub(crate) path: PathBuf,
    pub(crate) manifest: Manifest,
    pub(crate) trainer: String,
    pub(crate) parameters: Tensors,
    pub(crate) optimizer: Tensors,
    pub(crate) average: Option<Tensors>,
}

impl Checkpoint {
    /// Opens a checkpoint's folder and checks all of it. Reads each byte once, on all cores, in little
    /// memory.
    ///
    /// Ignores files that the manifest does not name; [`verify`](crate::verify) lists them.
    ///
    /// # Errors
    ///
    /// The first problem found, with the file's path.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        Self::open_showing(path, |_, _| ())
    }

    /// Like [`open`](Self::open), and calls `progress` with the bytes checked so far and the total.
    ///
    /// # Errors
    ///
    /// The same as [`open`](Self::open).
    pub fn open_showing(path: impl Into<PathBuf>, progress: impl Fn(u64, u64) + Sync) -> Result<Self> {
        examine(&path.into(), &progress).map_err(|mut errors| errors.swap_remove(0))
    }

    /// Returns the manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the text of `trainer.ron`.
    pub fn trainer(&self) -> &str {
        &self.trainer
    }

    /// Returns the parameters.
    pub fn parameters(&self) -> &Tensors {
        &self.parameters
    }

    /// Returns the optimizer's state.
    pub fn optimizer(&self) -> &Tensors {
        &self.optimizer
    }

    /// Returns the averaged weights, if the run averages weights.
    pub fn average(&self) -> Option<&Tensors> {
        self.average.as_ref()
    }
}
