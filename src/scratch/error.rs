//! Errors of the files that keep tensors on a disk.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Tensors cannot be kept on a disk.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ScratchError {
    /// The file cannot be created.
    #[error(
        "{}: cannot create a file for `Offload`: {source}{}",
        folder.display(), advice_at_start(.source)
    )]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file cannot be read or written.
    #[error("{}: cannot {doing} {part}: {source}{}", file.display(), advice(.source))]
    Io {
        /// The file, which has no name in its folder: the folder, and the rank that it belongs to.
        file: PathBuf,
        /// "read" or "write".
        doing: &'static str,
        /// The part of the file: a bucket of the optimizer's state, counted from 0, or a parameter.
        part: String,
        /// The cause.
        source: io::Error,
    },
    /// The disk returned other bytes than were written.
    #[error(
        "{}: {part} is damaged in {tensor}, at byte {at}: expected the BLAKE3 sum {expected}, found {found}: the disk or the memory is faulty; resume from the last checkpoint, with another folder",
        file.display()
    )]
    Damaged {
        /// The file, which has no name in its folder: the folder, and the rank that it belongs to.
        file: PathBuf,
        /// The part of the file: a bucket of the optimizer's state, counted from 0, or a parameter.
        part: String,
        /// The parameter's id and the field of its state; or which of the parameter's values, the master's or the replica's.
        tensor: String,
        /// The first byte of the damaged chunk in the tensor.
        at: usize,
        /// The sum of the chunk that was written.
        expected: Box<str>,
        /// The sum of the chunk that was read.
        found: Box<str>,
    },
    /// The optimizer does not yield its state.
    #[error("the state of the optimizer cannot be kept on a disk: {reason}")]
    State {
        /// The cause.
        reason: String,
    },
}

impl ScratchError {
    pub(super) fn io(file: &Path, doing: &'static str, part: &str, source: io::Error) -> Self {
        Self::Io { file: file.into(), doing, part: part.into(), source }
    }
}

/// Even the first block of a file may be one for which the disk has no room.
fn advice_at_start(source: &io::Error) -> String {
    advised(source, "", "its `on` must name an existing folder that the run may write into")
}

fn advice(source: &io::Error) -> String {
    let then = ", and resume from the last checkpoint";
    advised(source, then, "checkpoints are as they were: resume from the last one")
}

/// Returns what to do about a full disk, and `then`; `otherwise` about any other error.
fn advised(source: &io::Error, then: &str, otherwise: &str) -> String {
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            format!(
                "; free some space, or name another folder{then}: `firebrick plan` says how many bytes the file has, and while a checkpoint is saved it takes up to twice as many"
            )
        }
        _ => format!("; {otherwise}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_asks_for_room_whenever_it_is_met() {
        for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded] {
            let at_start = ScratchError::Folder { folder: "/nvme".into(), source: kind.into() };
            let later = ScratchError::io("/nvme".as_ref(), "write", "bucket 0", kind.into());
            for text in [at_start, later].map(|error| error.to_string()) {
                assert!(text.contains("free some space") && text.contains("`firebrick plan`"), "{text}");
                assert!(!text.contains("existing folder"), "{text}");
            }
        }
        let missing = ScratchError::Folder { folder: "/nvme".into(), source: ErrorKind::NotFound.into() };
        assert!(missing.to_string().ends_with("must name an existing folder that the run may write into"));
    }
}
