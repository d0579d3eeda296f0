//! Errors of checkpoints.

use std::io;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use thiserror::Error;

use crate::{Digest, FORMAT};

/// The result of an operation on checkpoints.
pub type Result<T, E = CheckpointError> = std::result::Result<T, E>;

/// An error in writing or reading a checkpoint.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// A file system operation failed.
    #[error("cannot {doing}, at {path}: {source}{}", advice(.source))]
    Io {
        /// The operation, as in "write manifest.json".
        doing: String,
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A path holds something other than a plain file or folder.
    #[error(
        "{path}: expected {expected}, found {found}: checkpoints are read only from regular files and folders; put the file or folder itself here, or specify its real path"
    )]
    Kind {
        /// The path.
        path: PathBuf,
        /// "a plain file" or "a folder".
        expected: &'static str,
        /// What the path holds.
        found: &'static str,
    },
    /// The folder of the checkpoints is a link whose target does not exist.
    #[error(
        "{path}: expected a folder, found a link to {}, which does not exist: mount or restore the target, or remove the link",
        target.display()
    )]
    DanglingLink {
        /// The link.
        path: PathBuf,
        /// The target that it names.
        target: PathBuf,
    },
    /// A folder's name is not that of its step.
    #[error(
        "{path}: expected a checkpoint folder with the name `{expected}`: rename the folder back, or specify the right one"
    )]
    FolderName {
        /// The folder.
        path: PathBuf,
        /// The name that it must have.
        expected: String,
    },
    /// The manifest has an unsupported format version.
    #[error(
        "{path}: expected a format of 1 to {FORMAT}, found format {found}: read this checkpoint with the version of firebrick that wrote it"
    )]
    Format {
        /// The manifest.
        path: PathBuf,
        /// Its format version.
        found: u32,
    },
    /// A save would replace a checkpoint of an unsupported format version.
    #[error(
        "{path}: a checkpoint of format {found} exists here, and this version only knows formats 1 to {FORMAT}: nothing was replaced; move that checkpoint away, or save into another folder"
    )]
    Occupied {
        /// The existing checkpoint.
        path: PathBuf,
        /// Its format version.
        found: u32,
    },
    /// A file's content is invalid.
    #[error(
        "{path}: expected {expected}, found {found}: the file is damaged or was changed; use another checkpoint, or a copy of this one"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The expected content.
        expected: String,
        /// The content found.
        found: String,
    },
    /// A file's size differs from the manifest.
    #[error(
        "{path}: expected {expected} bytes, found {found}: the file is damaged or was changed; use another checkpoint, or a copy of this one"
    )]
    Size {
        /// The file.
        path: PathBuf,
        /// Bytes according to the manifest.
        expected: u64,
        /// Bytes of the file.
        found: u64,
    },
    /// A file's digest differs from the manifest.
    #[error(
        "{path}: expected {} {expected}, found {found}: the file is damaged or was changed; use another checkpoint, or a copy of this one",
        expected.algorithm()
    )]
    Sum {
        /// The file.
        path: PathBuf,
        /// The digest in the manifest.
        expected: Digest,
        /// The digest of the file's bytes.
        found: Digest,
    },
    /// The caller stopped the check.
    #[error("{path}: stopped before all of it was checked")]
    Stopped {
        /// The checkpoint.
        path: PathBuf,
    },
    /// A file changed after its digest was checked.
    #[error("{path}: the file was changed after its sum was checked: open the checkpoint again")]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The slices in the files do not form a whole tensor.
    #[error(
        "{path}: tensor `{tensor}`: expected {expected}, found {found}: the files do not belong together; use another checkpoint, or a copy of this one"
    )]
    Slices {
        /// The file that holds the mismatched piece.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What the other pieces require.
        expected: String,
        /// What the file has.
        found: String,
    },
    /// The checkpoint has no tensor of this name.
    #[error("{path}: no tensor is named `{tensor}`{hint}")]
    NoTensor {
        /// The checkpoint.
        path: PathBuf,
        /// The name.
        tensor: String,
        /// Names of existing tensors.
        hint: String,
    },
    /// The requested rows exceed the tensor.
    #[error(
        "{path}: tensor `{tensor}`: expected rows between 0 and {rows}, found {found}: request rows of this range"
    )]
    Rows {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The tensor's number of rows.
        rows: usize,
        /// The requested rows.
        found: String,
    },
    /// The tensor has no such columns.
    #[error(
        "{path}: tensor `{tensor}`: expected {expected}, found {found}: request columns that the tensor has, or whole rows"
    )]
    Columns {
        /// The checkpoint.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The columns that can be requested, or the tensors that have columns.
        expected: String,
        /// The requested columns, or the tensor.
        found: String,
    },
    /// A state cannot be saved.
    #[error("{place}: expected {expected}, found {found}: nothing was saved; pass the expected state")]
    State {
        /// The tensor, scalar or field.
        place: String,
        /// What can be saved.
        expected: String,
        /// What was passed.
        found: String,
    },
    /// The bytes of a tensor to save cannot be read from where they are.
    #[error("tensor `{tensor}` cannot be read: {source}: nothing was saved")]
    Unread {
        /// The tensor.
        tensor: String,
        /// The cause.
        source: io::Error,
    },
    /// The rank that writes the manifest cannot see another rank's file.
    #[error(
        "{path}: expected a file of {expected} bytes that a rank wrote, found {found}: the folder must be on a file system that all ranks share"
    )]
    NotShared {
        /// The file.
        path: PathBuf,
        /// Bytes that the rank reported.
        expected: u64,
        /// What the path holds.
        found: String,
    },
    /// A checkpoint with non-finite numbers would replace a sound one.
    #[error(
        "{path}: expected weights and losses that are finite, found some that are not: nothing was saved, and the sound checkpoint of this step was kept; continue from it, or from an older one"
    )]
    NotSound {
        /// The checkpoint that remains.
        path: PathBuf,
    },
    /// A request for consolidation is invalid.
    #[error("{place}: expected {expected}, found {found}: {fix}")]
    Consolidate {
        /// The option, file or tensor.
        place: String,
        /// What is possible.
        expected: String,
        /// What was requested.
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

    /// Returns the file or folder of the error, if any.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Io { path, .. }
            | Self::Kind { path, .. }
            | Self::DanglingLink { path, .. }
            | Self::FolderName { path, .. }
            | Self::Format { path, .. }
            | Self::Occupied { path, .. }
            | Self::Damaged { path, .. }
            | Self::Size { path, .. }
            | Self::Sum { path, .. }
            | Self::Changed { path }
            | Self::Stopped { path }
            | Self::Slices { path, .. }
            | Self::NoTensor { path, .. }
            | Self::Rows { path, .. }
            | Self::Columns { path, .. }
            | Self::NotSound { path }
            | Self::NotShared { path, .. } => Some(path),
            Self::State { .. } | Self::Unread { .. } | Self::Consolidate { .. } => None,
        }
    }
}

/// Returns advice on a file system error.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ": free some space, keep fewer checkpoints, or write to another disk"
        }
        io::ErrorKind::PermissionDenied => ": grant this user the permission, or use another folder",
        io::ErrorKind::ReadOnlyFilesystem => ": use a writable folder",
        io::ErrorKind::NotFound => {
            ": check the path, and whether a folder in it was removed or renamed meanwhile"
        }
        _ => ": check the disk, and try again",
    }
}

/// Returns the dtype's name in safetensors, as in "BF16".
pub(crate) fn dtype_name(dtype: Dtype) -> String {
    format!("{dtype:?}")
}
