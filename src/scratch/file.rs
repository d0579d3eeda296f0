//! A file without a name, which parts of it are free, and buffers that direct I/O accepts.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::ScratchError;

/// A file of one rank, without a name in its folder.
#[derive(Debug)]
pub(crate) struct ScratchFile {
    file: File,
    /// The folder, and the rank that the file belongs to, for errors.
    name: PathBuf,
    /// Whether it bypasses the system's page cache.
    is_direct: bool,
    space: Mutex<Space>,
    moved: [Transfers; 2],
}

/// Which way bytes move.
#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    Read,
    Written,
}

/// The bytes that have moved one way, and the time that it took.
#[derive(Debug, Default)]
struct Transfers {
    bytes: AtomicU64,
    nanoseconds: AtomicU64,
}

impl ScratchFile {
    /// Creates a file for a rank.
    ///
    /// # Errors
    ///
    /// The folder does not exist or cannot be written into.
    pub fn create(folder: &Path, rank: usize) -> Result<Arc<Self>, ScratchError> {
        let failed = |source| ScratchError::Folder { folder: folder.into(), source };
        let file = tempfile::tempfile_in(folder).map_err(failed)?;
        let mut probe = AlignedBuffer::new(BLOCK);
        write_at(&file, probe.first(BLOCK), 0).map_err(failed)?;
        let is_direct = bypass_cache(&file) && write_at(&file, probe.first(BLOCK), 0).is_ok();
        if !is_direct {
            use_cache(&file);
        }
        Ok(Arc::new(Self {
            file,
            name: format!("{} (the file of `Offload` in it, of rank {rank})", folder.display()).into(),
            is_direct,
            space: Mutex::default(),
            moved: Default::default(),
        }))
    }

    /// Names the file in errors.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// Returns whether it bypasses the system's page cache.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Returns the bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.space().end
    }

    /// Returns the bytes read and written so far, and the seconds that buckets took on each way.
    pub fn moved(&self) -> [(u64, f64); 2] {
        let of = |Transfers { bytes, nanoseconds }: &Transfers| {
            (bytes.load(Relaxed), nanoseconds.load(Relaxed) as f64 / 1e9)
        };
        [of(&self.moved[0]), of(&self.moved[1])]
    }

    /// Counts the time since this moment for a bucket.
    pub(super) fn count(&self, way: Way, since: Instant) {
        let nanoseconds = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.moved[way as usize].nanoseconds.fetch_add(nanoseconds, Relaxed);
    }

    /// Takes a part of the file that nothing uses.
    pub(super) fn extent(self: &Arc<Self>, bytes: usize) -> Extent {
        let range = self.space().take(in_blocks(bytes) as u64);
        Extent { file: self.clone(), range }
    }

    fn space(&self) -> std::sync::MutexGuard<'_, Space> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part of a file, which is free again once this is dropped.
#[derive(Debug)]
pub(super) struct Extent {
    file: Arc<ScratchFile>,
    range: Range<u64>,
}

impl Extent {
    pub fn file(&self) -> &Arc<ScratchFile> {
        &self.file
    }

    /// Returns whether it has room for as many bytes.
    pub fn holds(&self, bytes: usize) -> bool {
        in_blocks(bytes) as u64 <= self.range.end - self.range.start
    }

    /// Reads whole blocks.
    pub fn read(&self, blocks: &mut [u8], at: usize) -> io::Result<()> {
        self.file.moved[Way::Read as usize].bytes.fetch_add(blocks.len() as u64, Relaxed);
        read_at(&self.file.file, blocks, self.range.start + at as u64)
    }

    /// Writes whole blocks.
    pub fn write(&self, blocks: &[u8], at: usize) -> io::Result<()> {
        self.file.moved[Way::Written as usize].bytes.fetch_add(blocks.len() as u64, Relaxed);
        write_at(&self.file.file, blocks, self.range.start + at as u64)
    }
}

impl Drop for Extent {
    fn drop(&mut self) {
        self.file.space().give_back(self.range.clone());
    }
}

/// The parts of a file.
#[derive(Debug, Default)]
struct Space {
    /// The length of the file.
    end: u64,
    /// The parts that nothing uses, in order, no two of them adjacent.
    free: Vec<Range<u64>>,
}

impl Space {
    /// Takes the first part that is long enough, or one at the end.
    fn take(&mut self, bytes: u64) -> Range<u64> {
        let length = |part: &Range<u64>| part.end - part.start;
        if let Some(index) = self.free.iter().position(|part| length(part) >= bytes) {
            let part = &mut self.free[index];
            let taken = part.start..part.start + bytes;
            part.start = taken.end;
            if part.is_empty() {
                self.free.remove(index);
            }
            return taken;
        }
        // A free part at the end grows.
        let last = self.free.pop_if(|part| part.end == self.end);
        let start = last.map_or(self.end, |part| part.start);
        self.end = start + bytes;
        start..self.end
    }

    fn give_back(&mut self, part: Range<u64>) {
        if part.is_empty() {
            return;
        }
        let mut index = self.free.partition_point(|free| free.start < part.start);
        self.free.insert(index, part);
        if index > 0 && self.free[index - 1].end == self.free[index].start {
            index -= 1;
            self.free[index].end = self.free.remove(index + 1).end;
        }
        if self.free.get(index + 1).is_some_and(|next| next.start == self.free[index].end) {
            self.free[index].end = self.free.remove(index + 1).end;
        }
    }
}

#[cfg(unix)]
fn read_at(file: &File, blocks: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, blocks, at)
}

#[cfg(unix)]
fn write_at(file: &File, blocks: &[u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, blocks, at)
}

#[cfg(windows)]
fn read_at(file: &File, blocks: &mut [u8], at: u64) -> io::Result<()> {
    let mut done = 0;
    while done < blocks.len() {
        match std::os::windows::fs::FileExt::seek_read(file, &mut blocks[done..], at + done as u64)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => done += read,
        }
    }
    Ok(())
}

#[cfg(windows)]
fn write_at(file: &File, blocks: &[u8], at: u64) -> io::Result<()> {
    let mut done = 0;
    while done < blocks.len() {
        match std::os::windows::fs::FileExt::seek_write(file, &blocks[done..], at + done as u64)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => done += written,
        }
    }
    Ok(())
}

/// Asks the system to bypass its page cache. Returns whether it agrees.
#[cfg(target_os = "linux")]
fn bypass_cache(file: &File) -> bool {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    fcntl_getfl(file).is_ok_and(|flags| fcntl_setfl(file, flags | OFlags::DIRECT).is_ok())
}

/// Asks the system to use its page cache again, which it has always done for other files.
#[cfg(target_os = "linux")]
fn use_cache(file: &File) {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    let _ = fcntl_getfl(file).map(|flags| fcntl_setfl(file, flags - OFlags::DIRECT));
}

#[cfg(not(target_os = "linux"))]
fn bypass_cache(_: &File) -> bool {
    false
}

#[cfg(not(target_os = "linux"))]
fn use_cache(_: &File) {}

/// What the address, the place in the file and the length of a direct read or write must be a multiple of, on any disk.
const BLOCK: usize = 4096;

/// Rounds up to whole blocks.
pub(super) fn in_blocks(bytes: usize) -> usize {
    bytes.next_multiple_of(BLOCK)
}

/// A buffer whose address is a multiple of [`BLOCK`].
pub(super) struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl AlignedBuffer {
    /// Creates a buffer of zeros, of whole blocks.
    pub fn new(bytes: usize) -> Self {
        let length = in_blocks(bytes);
        let bytes = vec![0; length + BLOCK];
        let start = bytes.as_ptr().addr().wrapping_neg() % BLOCK;
        Self { bytes, start, length }
    }

    /// Returns the first bytes, in whole blocks.
    pub fn first(&mut self, bytes: usize) -> &mut [u8] {
        let length = in_blocks(bytes).min(self.length);
        &mut self.bytes[self.start..][..length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_parts_are_taken_again_and_joined() {
        let mut space = Space::default();
        let [a, b, c] = [1, 2, 3].map(|blocks| space.take(blocks));
        assert_eq!((&a, &b, &c, space.end), (&(0..1), &(1..3), &(3..6), 6));
        space.give_back(a);
        space.give_back(c);
        assert_eq!(space.free, [0..1, 3..6]);
        assert_eq!(space.take(2), 3..5);
        space.give_back(3..5);
        space.give_back(b);
        assert_eq!((space.free.len(), &space.free[0]), (1, &(0..6)), "neighbours on both sides");
        assert_eq!((space.take(8), space.end), (0..8, 8), "the last part grows");
        assert_eq!(space.free, []);
    }

    #[test]
    fn a_folder_that_cannot_be_used_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        let error = ScratchFile::create(&missing, 0).unwrap_err().to_string();
        assert!(
            error.contains("missing: cannot create a file") && error.contains("existing folder"),
            "{error}"
        );
        assert!(ScratchFile::create(folder.path(), 0).is_ok());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the file has no name");
    }

    #[test]
    fn a_buffer_begins_at_a_block_and_has_whole_blocks() {
        for bytes in [1, BLOCK, BLOCK + 1] {
            let mut buffer = AlignedBuffer::new(bytes);
            let first = buffer.first(bytes);
            assert_eq!((first.as_ptr().addr() % BLOCK, first.len()), (0, in_blocks(bytes)));
        }
    }
}
