//! A checkpoint that was checked from the manifest to the last tensor, and can be read.

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::examine::examine;
use crate::{Manifest, Tensors};

/// A complete checkpoint, checked: every file has the size and the sum of the manifest, and the slices make
/// whole tensors.
///
/// Nothing of the tensors is in memory until it is read.
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
    /// Opens the folder of a checkpoint, and checks all of it: reads each byte once, on all cores, in little
    /// memory.
    ///
    /// Files that the manifest does not name are not read; [`verify`](crate::verify) tells them.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong, with the file's path.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        Self::open_showing(path, |_, _| ())
    }

    /// As [`open`](Self::open), telling again and again how many bytes of how many were checked.
    ///
    /// # Errors
    ///
    /// As of [`open`](Self::open).
    pub fn open_showing(path: impl Into<PathBuf>, progress: impl Fn(u64, u64) + Sync) -> Result<Self> {
        examine(&path.into(), &progress).map_err(|mut errors| errors.swap_remove(0))
    }

    /// What the manifest says.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The text of `trainer.ron`.
    pub fn trainer(&self) -> &str {
        &self.trainer
    }

    /// The parameters.
    pub fn parameters(&self) -> &Tensors {
        &self.parameters
    }

    /// The optimizer's state.
    pub fn optimizer(&self) -> &Tensors {
        &self.optimizer
    }

    /// The averaged weights, where weights were averaged.
    pub fn average(&self) -> Option<&Tensors> {
        self.average.as_ref()
    }
}
