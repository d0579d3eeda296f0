//! A file that is written beside its target and renamed to it.

use std::fs::{self, File};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::disk::{self, Disk, RealDisk, at};
use crate::error::Result;

/// The staged files of this process.
static ALL: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn all() -> MutexGuard<'static, Vec<PathBuf>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the half-written files of every [`consolidate`](crate::consolidate) of this process, which is about to end
/// without unwinding, as a signal ends it. A thread that would stage another file, or put one in place, waits from then on.
pub fn remove_staged() {
    let mut all = all();
    all.drain(..).for_each(|path| drop(fs::remove_file(path)));
    mem::forget(all);
}

/// A file that is removed on drop unless it was put in place.
pub(super) struct Staged {
    file: File,
    path: PathBuf,
    /// The target.
    pub place: PathBuf,
}

impl Staged {
    pub fn new(folder: &Path, name: &str) -> Result<Self> {
        let path = folder.join(format!(".staged-{name}"));
        // Under the lock, so that no file is created after those of the process were removed.
        let mut all = all();
        let file = disk::create_file(&RealDisk, &path)?;
        all.push(path.clone());
        Ok(Self { file, path, place: folder.join(name) })
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        at("write the model", &self.path, RealDisk.write("", &mut self.file, bytes))
    }

    pub fn sync(&self) -> Result<()> {
        at("sync the model", &self.path, RealDisk.sync_file("", &self.file))
    }

    pub fn put_in_place(self) -> Result<PathBuf> {
        let mut all = all();
        at("rename the model", &self.place, RealDisk.rename("", &self.path, &self.place))?;
        all.retain(|path| *path != self.path);
        Ok(self.place.clone())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let mut all = all();
        if let Some(at) = all.iter().position(|path| *path == self.path) {
            all.swap_remove(at);
            let _ = fs::remove_file(&self.path);
        }
    }
}
