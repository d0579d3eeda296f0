//! An entry: a file with a header, and frames of bytes.
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | `FBCACHE`, and the version of the layout, 1 |
//! | 8..72 | the key, 64 hexadecimal digits |
//! | 72..80 | number of bytes after the header, little-endian |
//! | 80..112 | BLAKE3 hash of these bytes |
//! | 112.. | frames: the number of bytes, 4 bytes little-endian, and the bytes. The first one says what the entry holds |
//!
//! A writer fills a file of another name and renames it, so a file with an entry's name is complete, and of several
//! writers the last one wins. There is no fsync: a file that lost its bytes with the power does not match its hash.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use blake3::Hasher;
use firebrick_datasets::Fingerprint;

use super::{TokenCache, TokenCacheError};

const MAGIC: [u8; 8] = *b"FBCACHE\x01";

/// Bytes of the header.
const HEADER: usize = 112;

/// What the names of entries end with.
pub(super) const ENDING: &str = "tokens";

/// What the names of files begin with that are being written.
pub(super) const STAGED: &str = ".staged-";

/// An entry that matches its hash.
#[derive(Debug)]
pub(crate) struct Entry {
    bytes: BufReader<File>,
}

/// An entry that is being written.
#[derive(Debug)]
pub(crate) struct EntryWriter {
    file: BufWriter<File>,
    hasher: Hasher,
    bytes: u64,
    limit: u64,
}

impl TokenCache {
    /// Returns the entry of a key, or `None` if there is none.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is damaged, or is no entry of this key.
    pub(crate) fn open(&self, key: Fingerprint) -> io::Result<Option<Entry>> {
        let mut file = match File::open(self.path(key)) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        let mut header = [0; HEADER];
        let damaged = |reason: &str| io::Error::new(ErrorKind::InvalidData, reason.to_owned());
        let length = file.metadata()?.len();
        file.read_exact(&mut header).map_err(|_| damaged("it was truncated"))?;
        let (magic, rest) = header.split_at(8);
        let (of, rest) = rest.split_at(64);
        let (bytes, hash) = rest.split_at(8);
        if magic != MAGIC || of != String::from(key).as_bytes() {
            return Err(damaged("it is not an entry of this key"));
        }
        let bytes = bytes.try_into().map_or(0, u64::from_le_bytes);
        if bytes.checked_add(HEADER as u64) != Some(length) {
            return Err(damaged("it was truncated"));
        }
        let mut hasher = Hasher::new();
        hasher.update_reader(&mut file)?;
        if hasher.finalize().as_bytes() != hash {
            return Err(damaged("it does not match its checksum"));
        }
        // Entries that are read stay when old ones are removed.
        let _ = file.set_modified(SystemTime::now());
        file.seek(SeekFrom::Start(HEADER as u64))?;
        let mut entry = Entry { bytes: BufReader::with_capacity(1 << 16, file) };
        entry.frame()?;
        Ok(Some(entry))
    }

    /// Adds an entry, whose frames `fill` writes, and removes old entries beyond the limit. `what` says what it holds.
    /// Does nothing if this process adds none.
    ///
    /// # Errors
    ///
    /// The file cannot be written, or the entry alone is larger than the limit. Then nothing is left of it.
    pub(crate) fn add(
        &self,
        key: Fingerprint,
        what: &str,
        fill: impl FnOnce(&mut EntryWriter) -> io::Result<()>,
    ) -> Result<(), TokenCacheError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        if !self.adds {
            return Ok(());
        }
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let staged = self.folder.join(format!("{STAGED}{}-{number}", process::id()));
        let write = || {
            fs::create_dir_all(&self.folder)?;
            let mut file = BufWriter::with_capacity(1 << 16, File::create(&staged)?);
            file.write_all(&[0; HEADER])?;
            let mut writer = EntryWriter { file, hasher: Hasher::new(), bytes: 0, limit: self.limit };
            writer.frame(what.as_bytes())?;
            fill(&mut writer)?;
            writer.finish(key)?;
            fs::rename(&staged, self.path(key))
        };
        write().map_err(|reason| {
            let _ = fs::remove_file(&staged);
            self.failed(reason)
        })?;
        self.prune(&self.path(key));
        Ok(())
    }

    fn path(&self, key: Fingerprint) -> PathBuf {
        self.folder.join(format!("{}.{ENDING}", &String::from(key)[..32]))
    }
}

impl Entry {
    /// Returns the next frame, or `None` at the end.
    pub fn frame(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut length = [0; 4];
        match self.bytes.read_exact(&mut length) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let mut frame = vec![0; u32::from_le_bytes(length) as usize];
        self.bytes.read_exact(&mut frame)?;
        Ok(Some(frame))
    }
}

impl EntryWriter {
    /// Adds a frame.
    pub fn frame(&mut self, bytes: &[u8]) -> io::Result<()> {
        let length = u32::try_from(bytes.len()).map_err(|_| ErrorKind::FileTooLarge)?;
        self.bytes += 4 + bytes.len() as u64;
        if self.bytes + HEADER as u64 > self.limit {
            let reason = "the tokens take more than the limit of the cache, FIREBRICK_CACHE_LIMIT";
            return Err(io::Error::new(ErrorKind::FileTooLarge, reason));
        }
        for part in [&length.to_le_bytes(), bytes] {
            self.hasher.update(part);
            self.file.write_all(part)?;
        }
        Ok(())
    }

    fn finish(mut self, key: Fingerprint) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&MAGIC)?;
        self.file.write_all(String::from(key).as_bytes())?;
        self.file.write_all(&self.bytes.to_le_bytes())?;
        self.file.write_all(self.hasher.finalize().as_bytes())?;
        self.file.flush()
    }
}

/// Returns what an entry holds, unchecked: its first frame.
pub(super) fn what(path: &Path) -> io::Result<String> {
    const MOST: usize = 4096;
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(HEADER as u64))?;
    let mut length = [0; 4];
    file.read_exact(&mut length)?;
    let mut text = vec![0; (u32::from_le_bytes(length) as usize).min(MOST)];
    file.read_exact(&mut text)?;
    Ok(String::from_utf8_lossy(&text).chars().filter(|one| !one.is_control()).collect())
}

#[cfg(test)]
#[path = "entry_tests.rs"]
mod tests;
