//! What the folder holds.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::entry::{ENDING, STAGED, what};
use super::{TokenCache, TokenCacheError};

/// A file of this age is no longer being written.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// An entry of the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeptTokens {
    /// What it holds.
    pub name: String,
    /// Bytes of its file.
    pub bytes: u64,
}

struct File {
    path: PathBuf,
    bytes: u64,
    /// When it was written or last read.
    used: SystemTime,
}

impl TokenCache {
    /// Returns the entries, the last used one first. A missing folder is an empty one.
    ///
    /// # Errors
    ///
    /// The folder cannot be read.
    pub fn entries(&self) -> Result<Vec<KeptTokens>, TokenCacheError> {
        let mut files = self.files(is_entry).map_err(|reason| self.failed(reason))?;
        files.sort_by(|one, other| other.used.cmp(&one.used).then(one.path.cmp(&other.path)));
        let entry = |File { path, bytes, .. }| KeptTokens {
            name: what(&path).unwrap_or_else(|_| "damaged".into()),
            bytes,
        };
        Ok(files.into_iter().map(entry).collect())
    }

    /// Removes all entries, and nothing else.
    ///
    /// # Errors
    ///
    /// A file cannot be removed.
    pub fn clear(&self) -> Result<(), TokenCacheError> {
        let files = self.files(|name| is_entry(name) || name.starts_with(STAGED));
        for File { path, .. } in files.map_err(|reason| self.failed(reason))? {
            match fs::remove_file(&path) {
                Err(reason) if reason.kind() != ErrorKind::NotFound => {
                    return Err(TokenCacheError::Files { path, reason });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes the entries that were not read for longest until the others fit the limit, but not `kept`. Also removes
    /// files that a killed process left. Ignores files that cannot be removed.
    pub(super) fn prune(&self, kept: &Path) {
        for File { path, used, .. } in self.files(|name| name.starts_with(STAGED)).unwrap_or_default() {
            if used.elapsed().is_ok_and(|age| age > ABANDONED) {
                let _ = fs::remove_file(path);
            }
        }
        let mut files = self.files(is_entry).unwrap_or_default();
        let mut bytes: u64 = files.iter().map(|file| file.bytes).sum();
        files.sort_by_key(|file| file.used);
        for file in files.into_iter().filter(|file| file.path != kept) {
            if bytes <= self.limit {
                return;
            }
            if fs::remove_file(&file.path).is_ok() {
                bytes -= file.bytes;
            }
        }
    }

    /// Returns the files whose names are asked for.
    fn files(&self, asked: impl Fn(&str) -> bool) -> io::Result<Vec<File>> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry?;
            // Another process may have removed it.
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_file() && entry.file_name().to_str().is_some_and(&asked) {
                let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                files.push(File { path: entry.path(), bytes: metadata.len(), used });
            }
        }
        Ok(files)
    }
}

fn is_entry(name: &str) -> bool {
    let key = name.strip_suffix(ENDING).and_then(|name| name.strip_suffix('.'));
    key.is_some_and(|key| key.len() == 32 && key.bytes().all(|byte| byte.is_ascii_hexdigit()))
}
