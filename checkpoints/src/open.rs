//! Opens a checkpoint: checks it, and returns the first problem.

use std::path::PathBuf;

use crate::Checkpoint;
use crate::error::Result;
use crate::examine::examine;

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
        Self::open_while(path, |done, all| {
            progress(done, all);
            true
        })
    }

    /// Like [`open_showing`](Self::open_showing), but stops as soon as `progress` returns false.
    ///
    /// # Errors
    ///
    /// The same as [`open`](Self::open), and [`CheckpointError::Stopped`](crate::CheckpointError::Stopped).
    pub fn open_while(path: impl Into<PathBuf>, progress: impl Fn(u64, u64) -> bool + Sync) -> Result<Self> {
        examine(&path.into(), &progress).map_err(|mut errors| errors.swap_remove(0))
    }
}
