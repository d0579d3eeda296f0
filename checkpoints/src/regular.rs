//! Opens plain files for reading, and nothing else: it follows no links and waits for no pipes.

use std::fs::{self, File, FileType, Metadata, OpenOptions};
use std::io::Read;
use std::path::Path;
use std::time::SystemTime;

use crate::error::{CheckpointError, Result};

/// Opens a plain file and returns it with its metadata.
pub(crate) fn open(path: &Path) -> Result<(File, Metadata)> {
    let io = |error| CheckpointError::io("open", path, error);
    // Checks the path first, for a clear error. The check of the opened file is decisive: nobody can swap it any more.
    plain_file(path, fs::symlink_metadata(path).map_err(io)?.file_type())?;
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;

        use rustix::fs::OFlags;
        // Opening a pipe without a writer would block.
        options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    }
    let file = options.open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    plain_file(path, metadata.file_type())?;
    Ok((file, metadata))
}

fn plain_file(path: &Path, kind: FileType) -> Result<()> {
    let wrong = |found| CheckpointError::Kind { path: path.into(), expected: "a plain file", found };
    if kind.is_file() { Ok(()) } else { Err(wrong(described(kind))) }
}

/// Rejects anything but a folder itself, such as a link to one.
pub(crate) fn real_folder(path: &Path) -> Result<()> {
    let kind =
        fs::symlink_metadata(path).map_err(|error| CheckpointError::io("open", path, error))?.file_type();
    let wrong = |found| CheckpointError::Kind { path: path.into(), expected: "a folder", found };
    if kind.is_dir() { Ok(()) } else { Err(wrong(described(kind))) }
}

fn described(kind: FileType) -> &'static str {
    match kind {
        _ if kind.is_dir() => "a folder",
        _ if kind.is_symlink() => "a symbolic link",
        _ if kind.is_file() => "a plain file",
        _ => "a pipe, socket or device",
    }
}

/// Reads a whole file of bounded size.
pub(crate) fn read_small(path: &Path, most: u64) -> Result<Vec<u8>> {
    let (file, metadata) = open(path)?;
    let too_long = |bytes| {
        Err(CheckpointError::damaged(path, format!("at most {most} bytes"), format!("{bytes} bytes")))
    };
    if metadata.len() > most {
        return too_long(metadata.len());
    }
    let mut bytes = Vec::with_capacity(metadata.len() as usize);
    // The file may be growing.
    file.take(most + 1).read_to_end(&mut bytes).map_err(|error| CheckpointError::io("read", path, error))?;
    if bytes.len() as u64 > most { too_long(bytes.len() as u64) } else { Ok(bytes) }
}

/// Identifies a file: replacing or rewriting it changes at least one of these fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    bytes: u64,
    modified: Option<SystemTime>,
    /// The device and the inode.
    number: Option<(u64, u64)>,
}

impl Identity {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        #[cfg(unix)]
        let number = {
            use std::os::unix::fs::MetadataExt;
            Some((metadata.dev(), metadata.ino()))
        };
        #[cfg(not(unix))]
        let number = None;
        Self { bytes: metadata.len(), modified: metadata.modified().ok(), number }
    }

    /// Returns the file's size.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}
