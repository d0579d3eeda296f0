//! The folder where runs keep tokens, and vocabularies that they learned, for later runs.
//!
//! A file of the folder, an entry, is found by a key: a hash of everything that the tokens depend on, such as the
//! contents of the data's files, the tokenizer and the settings of the task. So an entry is never out of date; one that
//! no run reads any more is removed when the folder grows beyond its limit.
//!
//! ```text
//! mod.rs     the folder, and whether this process uses it
//! entry.rs   a file of the folder: writing it, and checking it when it is read
//! kept.rs    what the folder holds: listing, clearing, and the limit
//! ```

mod entry;
mod kept;

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use firebrick::ByteSize;
use firebrick::device::kernel_cache::{self, KernelCacheError};
use thiserror::Error;

pub(crate) use entry::{Entry, EntryWriter};
pub use kept::KeptTokens;

/// The variable that names the folder of both caches.
const FOLDER: &str = "FIREBRICK_CACHE";

/// The variable of the most bytes.
const LIMIT: &str = "FIREBRICK_CACHE_LIMIT";

/// The most bytes, unless the variable says otherwise.
const USUAL_LIMIT: u64 = 10_000_000_000;

/// Whether this process uses the cache. A program does only if it asks for it.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// The token cache cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TokenCacheError {
    /// No variable names the folder.
    #[error(
        "no folder for tokens: none of FIREBRICK_CACHE, XDG_CACHE_HOME and HOME is set. Set FIREBRICK_CACHE"
    )]
    NoFolder,
    /// The limit is not a number of bytes.
    #[error("FIREBRICK_CACHE_LIMIT: expected a number of bytes such as 20GB, found {0:?}")]
    Limit(String),
    /// The folder, or a file in it, cannot be read, written or removed.
    #[error("{path}: {reason}. FIREBRICK_CACHE names another folder")]
    Files {
        /// The folder or the file.
        path: PathBuf,
        /// The operating system's reason.
        reason: io::Error,
    },
}

/// The folder where runs keep tokens, and vocabularies that they learned, for later runs.
#[derive(Clone, Debug)]
pub struct TokenCache {
    folder: PathBuf,
    /// The most bytes of all entries.
    limit: u64,
    /// Whether this process adds entries.
    adds: bool,
}

impl TokenCache {
    /// Lets this process use the cache of its user: what it loads is kept there, and read from there. The program
    /// `firebrick` does; other programs keep nothing unless they call this.
    pub fn install() {
        IS_USED.store(true, Ordering::Relaxed);
    }

    /// Returns the cache of this user if this process uses it.
    ///
    /// A build with debug assertions uses it only if `FIREBRICK_CACHE` is set: it is under development, and tokens of an
    /// older build would hide a change.
    ///
    /// # Errors
    ///
    /// No folder is set, or the limit is invalid.
    pub(crate) fn of_runs() -> Result<Option<Self>, TokenCacheError> {
        let is_wanted = !cfg!(debug_assertions) || is_set(FOLDER);
        if is_wanted && IS_USED.load(Ordering::Relaxed) { Self::of_user().map(Some) } else { Ok(None) }
    }

    /// Returns the cache of this user: the folder `tokens` in `$FIREBRICK_CACHE`, otherwise beside the folder of
    /// kernels.
    ///
    /// # Errors
    ///
    /// No folder is set, or the limit is invalid.
    pub fn of_user() -> Result<Self, TokenCacheError> {
        let kernels = kernel_cache::folder().map_err(|error| match error {
            KernelCacheError::Files { path, reason } => TokenCacheError::Files { path, reason },
            _ => TokenCacheError::NoFolder,
        })?;
        let folder = if is_set(FOLDER) { kernels.join("tokens") } else { kernels.with_file_name("tokens") };
        let limit = match env::var(LIMIT) {
            Ok(text) if !text.is_empty() => {
                let ByteSize(bytes) = text.parse().map_err(|_| TokenCacheError::Limit(text))?;
                bytes as u64
            }
            _ => USUAL_LIMIT,
        };
        Ok(Self { folder, limit, adds: true })
    }

    /// Sets whether this process adds entries. Default: yes.
    pub(crate) fn adding(self, adds: bool) -> Self {
        Self { adds, ..self }
    }

    /// The folder, which may not exist.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn failed(&self, reason: io::Error) -> TokenCacheError {
        TokenCacheError::Files { path: self.folder.clone(), reason }
    }
}

fn is_set(name: &str) -> bool {
    env::var_os(name).is_some_and(|value| !value.is_empty())
}
