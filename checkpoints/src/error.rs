//! What can go wrong with a checkpoint.

use std::io;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use thiserror::Error;

use crate::{Digest, FORMAT};

/// The result of an operation on checkpoints.
pub type Result<T, E = CheckpointError> = std::result::Result<T, E>;

/// A checkpoint that cannot be written, or must not be read.
#[derive(Debug, Error)]
pub enum CheckpointError {
    /// The file system refused an operation.
    #[error("{doing}, at {path}: {source}{}", advice(.source))]
    Io {
        /// The operation, as in "write manifest.json".
        doing: String,
        /// What it was done to.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Something else than a plain file or folder is in its place.
    #[error(
        "{path}: expected {expected}, found {found}: checkpoints are read from plain files and folders only; put the thing itself here, or name the path where it is"
    )]
    Kind {
        /// What was looked at.
        path: PathBuf,
        /// "a plain file" or "a folder".
        expected: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// A folder does not have the name of a step.
    #[error(
        "{path}: expected a checkpoint's folder, named as `{expected}`: give the folder its name back, or name the right one"
    )]
    FolderName {
        /// The folder.
        path: PathBuf,
        /// The name that it must have.
        expected: String,
    },
    /// The manifest is of another version of the format.
    #[error(
        "{path}: expected a format of 1 to {FORMAT}, found format {found}: read this checkpoint with the version of firebrick that wrote it"
    )]
    Format {
        /// The manifest.
        path: PathBuf,
        /// The version of its format.
        found: u32,
    },
    /// A checkpoint of another version of the format stands where one would be written.
    #[error(
        "{path}: a checkpoint of format {found} stands where this one would be saved, and this version knows formats \
         1 to {FORMAT}: nothing was replaced; move that checkpoint away, or save into another folder"
    )]
    Occupied {
        /// The checkpoint that is there.
        path: PathBuf,
        /// The version of its format.
        found: u32,
    },
    /// A file does not hold what it must.
    #[error(
        "{path}: expected {expected}, found {found}: the file is damaged or was changed; use another checkpoint, or a copy of this one"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What must be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A file is shorter or longer than the manifest says.
    #[error(
        "{path}: expected {expected} bytes, found {found}: the file is damaged or was changed; use another checkpoint, or a copy of this one"
    )]
    Size {
        /// The file.
        path: PathBuf,
        /// Bytes by the manifest.
        expected: u64,
        /// Bytes that it has.
        found: u64,
    },
    /// A file's sum is not that of the manifest.
    #[error(
        "{path}: expected {} {expected}, found {found}: the file is damaged or was changed; use another checkpoint, or a copy of this one",
        expected.algorithm()
    )]
    Sum {
        /// The file.
        path: PathBuf,
        /// The sum by the manifest.
        expected: Digest,
        /// The sum of its bytes.
        found: Digest,
    },
    /// A file was changed after its sum was checked.
    #[error("{path}: the file was changed after its sum was checked: open the checkpoint again")]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The slices in the files do not make a whole tensor.
    #[error(
        "{path}: tensor `{tensor}`: expected {expected}, found {found}: the files do not belong together; use another checkpoint, or a copy of this one"
    )]
    Slices {
        /// The file that holds the piece that does not fit.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What the other pieces ask for.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A checkpoint has no tensor of this name.
    #[error("{path}: no tensor is named `{tensor}`{hint}")]
    NoTensor {
        /// The checkpoint.
        path: PathBuf,
        /// The name.
        tensor: String,
        /// Names that it has.
        hint: String,
    },
    /// Rows that a tensor does not have.
    #[error("{path}: tensor `{tensor}` has {rows} rows, found {found}: ask for rows between 0 and {rows}")]
    Rows {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Rows that it has.
        rows: usize,
        /// Rows that were asked for.
        found: String,
    },
    /// A state that was handed over cannot be saved.
    #[error("{place}: expected {expected}, found {found}: nothing was saved; hand over what was expected")]
    State {
        /// The tensor, scalar or field.
        place: String,
        /// What can be saved.
        expected: String,
        /// What it was.
        found: String,
    },
    /// A rank's file is not where the manifest is written.
    #[error(
        "{path}: expected a file of {expected} bytes that a rank wrote, found {found}: the folder must be on a file system that all ranks share"
    )]
    NotShared {
        /// The file.
        path: PathBuf,
        /// Bytes that the rank told.
        expected: u64,
        /// What is there.
        found: String,
    },
    /// A checkpoint with numbers that are not finite would take the place of a sound one.
    #[error(
        "{path}: expected weights and losses that are finite, found some that are not: the sound checkpoint of this step stays, and nothing was saved; go on from it, or from an older one"
    )]
    NotSound {
        /// The checkpoint that stays.
        path: PathBuf,
    },
    /// Consolidation was asked for something that it cannot do.
    #[error("{place}: expected {expected}, found {found}: {fix}")]
    Consolidate {
        /// The option, file or tensor.
        place: String,
        /// What is possible.
        expected: String,
        /// What was asked for.
        found: String,
        /// What to do.
        fix: &'static str,
    },
}

impl CheckpointError {
    pub(crate) fn io(doing: &str, path: &Path, source: io::Error) -> Self {
        Self::Io { doing: doing.into(), path: path.into(), source }
    }

    pub(crate) fn damaged(path: &Path, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self::Damaged { path: path.into(), expected: expected.into(), found: found.into() }
    }

    pub(crate) fn state(
        place: impl Into<String>,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) -> Self {
        Self::State { place: place.into(), expected: expected.into(), found: found.into() }
    }

    /// The file or folder that is wrong, where one is.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Io { path, .. }
            | Self::Kind { path, .. }
            | Self::FolderName { path, .. }
            | Self::Format { path, .. }
            | Self::Occupied { path, .. }
            | Self::Damaged { path, .. }
            | Self::Size { path, .. }
            | Self::Sum { path, .. }
            | Self::Changed { path }
            | Self::Slices { path, .. }
            | Self::NoTensor { path, .. }
            | Self::Rows { path, .. }
            | Self::NotSound { path }
            | Self::NotShared { path, .. } => Some(path),
            Self::State { .. } | Self::Consolidate { .. } => None,
        }
    }
}

/// What to do about an error of the file system.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ": free some space, keep fewer checkpoints, or write to another disk"
        }
        io::ErrorKind::PermissionDenied => ": give this user the right to, or use another folder",
        io::ErrorKind::ReadOnlyFilesystem => ": use a folder that can be written",
        io::ErrorKind::NotFound => ": it must be there; check the path",
        _ => ": see that the disk works, and try again",
    }
}

/// The dtype as safetensors writes it, as in "BF16".
pub(crate) fn dtype_name(dtype: Dtype) -> String {
    format!("{dtype:?}")
}
