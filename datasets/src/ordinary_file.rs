//! Opens ordinary files only.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

/// Opens an ordinary file to read its bytes as they are. Devices and pipes are refused, since they may have no end.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    // Checks before opening: opening a pipe would wait for its other end.
    let metadata = fs::metadata(path)?;
    if metadata.is_dir() {
        return Err(io::Error::other("this is a folder, not a file"));
    }
    if !metadata.is_file() {
        return Err(io::Error::other("this is not a regular file"));
    }
    File::open(path)
}
