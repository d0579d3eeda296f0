//! A checked checkpoint, open for reading.

use std::path::{Path, PathBuf};

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
    /// Returns the manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the text of the [trainer's file](Manifest::trainer_file).
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
