//! Every operation that changes the disk, so that tests can make each of them fail.

use std::fmt::Debug;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::error::{CheckpointError, Result};

/// The file system operations that a save uses.
///
/// Each takes `at`, which names the point of the protocol, as in "write manifest.json". The provided methods
/// perform the operation; [`RealDisk`] uses them all.
pub trait Disk: Debug + Send + Sync {
    /// Creates one folder.
    fn create_dir(&self, at: &str, path: &Path) -> io::Result<()> {
        let _ = at;
        fs::create_dir(path)
    }

    /// Creates a file for writing, which must not exist yet. Does not follow links.
    fn create_file(&self, at: &str, path: &Path) -> io::Result<File> {
        let _ = at;
        File::create_new(path)
    }

    /// Appends some bytes to a file.
    fn write(&self, at: &str, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        let _ = at;
        file.write_all(bytes)
    }

    /// Waits until a file's bytes are on the disk.
    fn sync_file(&self, at: &str, file: &File) -> io::Result<()> {
        let _ = at;
        file.sync_all()
    }

    /// Waits until a folder's entries are on the disk. Does nothing on Windows.
    fn sync_dir(&self, at: &str, path: &Path) -> io::Result<()> {
        let _ = at;
        if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
    }

    /// Renames a file over another, or a folder to a free name.
    fn rename(&self, at: &str, from: &Path, to: &Path) -> io::Result<()> {
        let _ = at;
        fs::rename(from, to)
    }

    /// Removes a file.
    fn remove_file(&self, at: &str, path: &Path) -> io::Result<()> {
        let _ = at;
        fs::remove_file(path)
    }

    /// Removes a folder with all its content. Removes links without following them.
    fn remove_dir_all(&self, at: &str, path: &Path) -> io::Result<()> {
        let _ = at;
        fs::remove_dir_all(path)
    }
}

/// The real file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {}

/// Names the point and the path in an error.
pub(crate) fn at<T>(point: &str, path: &Path, result: io::Result<T>) -> Result<T> {
    result.map_err(|error| CheckpointError::io(point, path, error))
}

/// Creates a folder and its missing parents, and syncs each entry. Another rank may create them at the same time.
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

/// Creates a file, replacing one that an earlier attempt left.
pub(crate) fn create_file(disk: &dyn Disk, path: &Path) -> Result<File> {
    let name = name_of(path);
    if path.symlink_metadata().is_ok() {
        let point = format!("remove the old {name}");
        at(&point, path, disk.remove_file(&point, path))?;
    }
    let point = format!("create {name}");
    at(&point, path, disk.create_file(&point, path))
}

/// Creates a small file with all its bytes, and syncs it.
pub(crate) fn write_file(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = create_file(disk, path)?;
    let point = format!("write {}", name_of(path));
    at(&point, path, disk.write(&point, &mut file, bytes))?;
    let point = format!("sync {}", name_of(path));
    at(&point, path, disk.sync_file(&point, &file))
}

/// Returns a path's last component, for a message.
pub(crate) fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
