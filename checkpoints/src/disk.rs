//! Every operation that changes the disk, so that tests can make each of them fail.

use std::fmt::Debug;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::error::{CheckpointError, Result};

/// The operations on files and folders of which saving is made.
///
/// Each takes `at`, which names the point of the protocol, as in "write manifest.json". The provided methods
/// do the operation; [`RealDisk`] is made of them alone.
pub trait Disk: Debug + Send + Sync {
    /// Makes one folder.
    fn create_dir(&self, at: &str, path: &Path) -> io::Result<()> {
        let _ = at;
        fs::create_dir(path)
    }

    /// Makes a file that is not there yet, to be written. No link is followed.
    fn create_file(&self, at: &str, path: &Path) -> io::Result<File> {
        let _ = at;
        File::create_new(path)
    }

    /// Writes some bytes at the end.
    fn write(&self, at: &str, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        let _ = at;
        file.write_all(bytes)
    }

    /// Waits until a file's bytes are on the disk.
    fn sync_file(&self, at: &str, file: &File) -> io::Result<()> {
        let _ = at;
        file.sync_all()
    }

    /// Waits until a folder's names are on the disk. Windows has nothing of the kind.
    fn sync_dir(&self, at: &str, path: &Path) -> io::Result<()> {
        let _ = at;
        if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
    }

    /// Renames a file over another, or a folder to a name that is free.
    fn rename(&self, at: &str, from: &Path, to: &Path) -> io::Result<()> {
        let _ = at;
        fs::rename(from, to)
    }

    /// Removes a file.
    fn remove_file(&self, at: &str, path: &Path) -> io::Result<()> {
        let _ = at;
        fs::remove_file(path)
    }

    /// Removes a folder with all that is in it. Links are removed, not followed.
    fn remove_dir_all(&self, at: &str, path: &Path) -> io::Result<()> {
        let _ = at;
        fs::remove_dir_all(path)
    }
}

/// The disk as it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {}

/// Names the point and the path in an error.
pub(crate) fn at<T>(point: &str, path: &Path, result: io::Result<T>) -> Result<T> {
    result.map_err(|error| CheckpointError::io(point, path, error))
}

/// Makes a folder and those above it that are missing, each name synced. Another rank may make them too.
pub(crate) fn create_folder(disk: &dyn Disk, path: &Path) -> Result<()> {
    if path.as_os_str().is_empty() || path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().unwrap_or(Path::new(""));
    create_folder(disk, parent)?;
    let point = format!("create the folder {}", name_of(path));
    match disk.create_dir(&point, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        made => at(&point, path, made),
    }?;
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let point = format!("sync the folder above {}", name_of(path));
    at(&point, parent, disk.sync_dir(&point, parent))
}

/// Makes a file, in place of one that an earlier try left.
pub(crate) fn create_file(disk: &dyn Disk, path: &Path) -> Result<File> {
    let name = name_of(path);
    if path.symlink_metadata().is_ok() {
        let point = format!("remove the old {name}");
        at(&point, path, disk.remove_file(&point, path))?;
    }
    let point = format!("create {name}");
    at(&point, path, disk.create_file(&point, path))
}

/// Makes a small file with all its bytes, and syncs it.
pub(crate) fn write_file(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = create_file(disk, path)?;
    let point = format!("write {}", name_of(path));
    at(&point, path, disk.write(&point, &mut file, bytes))?;
    let point = format!("sync {}", name_of(path));
    at(&point, path, disk.sync_file(&point, &file))
}

/// A path's last name, for a message.
pub(crate) fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
