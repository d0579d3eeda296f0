//! A file of token ids, read in place.

use std::{
    fs::File,
    io::{self, ErrorKind, Read},
    ops::Range,
    path::{Path, PathBuf},
};

use super::header::{Header, MAGIC, Width};
use crate::{DataError, Fingerprint, ReadError, ordinary_file};

/// A file of token ids that is read in place; the operating system caches what is read.
///
/// [`TokenWriter`](super::TokenWriter) and `firebrick tokenize` write such files. A file of any size opens immediately.
/// Opening checks the header, and reading checks each id. If the file is changed or truncated while open, reading
/// returns other ids or an error.
///
/// # Example
///
/// ```
/// use firebrick_datasets::{TokenFile, TokenWriter, Windows};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("corpus.tokens");
/// let bytes = [0; 32]; // The ids are the bytes of a text; a tokenizer has a hash of its own.
/// let mut writer = TokenWriter::for_ids(&path, 256, bytes)?;
/// writer.document(&[104, 111, 108, 101])?;
/// writer.finish()?;
///
/// let file = TokenFile::open(&path)?;
/// assert_eq!(file.tokenizer(), bytes);
/// assert_eq!(file.range(1..3)?, [111, 108]);
/// let windows = Windows::new(file, 3)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TokenFile {
    path: PathBuf,
    header: Header,
    bytes: Positioned,
}

impl TokenFile {
    /// Opens a token file.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`] if the file cannot be opened, [`ReadError::TokenFile`] if it is not a token file, has another
    /// version, or is damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, DataError> {
        let path = path.as_ref();
        let file = ordinary_file::open(path).map_err(DataError::io(path))?;
        let metadata = file.metadata().map_err(DataError::io(path))?;
        let failed = |reason| DataError::Read(ReadError::TokenFile { path: path.to_owned(), reason });
        if metadata.len() < Header::BYTES as u64 {
            return Err(failed("it is shorter than a header".into()));
        }
        let bytes = Positioned::new(file);
        let mut start = [0; Header::BYTES];
        bytes.read(0, &mut start).map_err(DataError::io(path))?;
        let header = Header::read(&start, metadata.len()).map_err(failed)?;
        if usize::try_from(metadata.len()).is_err() {
            return Err(failed("it has more tokens than this machine can count".into()));
        }
        Ok(Self { path: path.to_owned(), header, bytes })
    }

    /// Returns whether a file begins like a token file.
    pub fn is_one(path: impl AsRef<Path>) -> bool {
        let mut start = [0; MAGIC.len()];
        let read = ordinary_file::open(path.as_ref()).and_then(|mut file| file.read_exact(&mut start));
        read.is_ok() && start == MAGIC
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        // The tokens fit in the file, and each has at least one byte.
        self.header.tokens as usize
    }

    /// Returns whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.header.tokens == 0
    }

    /// Returns the number of documents.
    pub fn documents(&self) -> u64 {
        self.header.documents
    }

    /// Returns the size of the vocabulary: all ids are smaller.
    pub fn vocab_size(&self) -> u64 {
        self.header.vocab_size
    }

    /// Returns the hash of the tokenizer that made the ids.
    pub fn tokenizer(&self) -> [u8; 32] {
        self.header.tokenizer
    }

    /// Returns the ids of a range of tokens.
    ///
    /// # Errors
    ///
    /// [`ReadError::TokenRange`] if the range reaches beyond the end, [`ReadError::TokenFile`] if an id in it is
    /// outside the vocabulary.
    pub fn range(&self, range: Range<usize>) -> Result<Vec<u32>, DataError> {
        let width = self.header.width.bytes();
        if range.start > range.end || range.end > self.len() {
            return Err(ReadError::TokenRange { range, tokens: self.len() }.into());
        }
        let mut bytes = vec![0; range.len() * width];
        self.read(range.start * width, &mut bytes)?;
        let ids: Vec<u32> = match self.header.width {
            Width::U16 => words(&bytes).map(u16::from_le_bytes).map(u32::from).collect(),
            Width::U32 => words(&bytes).map(u32::from_le_bytes).collect(),
        };
        // One pass without a branch; only a damaged file needs the position.
        let largest = ids.iter().copied().max().unwrap_or(0);
        if u64::from(largest) >= self.header.vocab_size && !ids.is_empty() {
            let offset = ids.iter().position(|&id| id == largest).unwrap_or(0);
            return Err(self.failed(format!(
                "token {} is {largest}, but the vocabulary has {}; the file is damaged",
                range.start + offset,
                self.header.vocab_size
            )));
        }
        Ok(ids)
    }

    /// Returns a fingerprint of the header, which has a checksum of all ids as they were written, and of at most a
    /// thousand pieces of 4 KiB spread over the file. It covers all of a small file and is fast for a large one.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`] if the file cannot be read, [`ReadError::TokenFile`] if it was truncated.
    pub fn fingerprint(&self) -> Result<Fingerprint, DataError> {
        let bytes = self.len() * self.header.width.bytes();
        let step = bytes.div_ceil(PIECES).max(PIECE);
        let (mut all, mut piece) = (self.header.to_bytes().to_vec(), vec![0; PIECE]);
        for start in (0..bytes).step_by(step) {
            let piece = &mut piece[..PIECE.min(bytes - start)];
            self.read(start, piece)?;
            all.extend_from_slice(piece);
        }
        Ok(Fingerprint::of(all))
    }

    /// Reads the whole file and compares it with its checksum.
    ///
    /// # Errors
    ///
    /// [`ReadError::TokenFile`] if they differ.
    pub fn verify(&self) -> Result<(), DataError> {
        let bytes = self.len() * self.header.width.bytes();
        let (mut checksum, mut chunk) = (crc32fast::Hasher::new(), vec![0; CHUNK.min(bytes)]);
        for start in (0..bytes).step_by(CHUNK) {
            let chunk = &mut chunk[..CHUNK.min(bytes - start)];
            self.read(start, chunk)?;
            checksum.update(chunk);
        }
        match checksum.finalize() == self.header.checksum {
            true => Ok(()),
            false => Err(self.failed("its ids do not match their checksum; tokenize the text again".into())),
        }
    }

    /// Reads the bytes of the ids from `start` on.
    fn read(&self, start: usize, bytes: &mut [u8]) -> Result<(), DataError> {
        self.bytes.read((Header::BYTES + start) as u64, bytes).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => self.failed(
                "it was truncated while it was read; restore it, and do not change it while a run reads it"
                    .into(),
            ),
            _ => DataError::io(&self.path)(error),
        })
    }

    pub(super) fn failed(&self, reason: String) -> DataError {
        DataError::Read(ReadError::TokenFile { path: self.path.clone(), reason })
    }
}

/// The number of pieces in a file's fingerprint, and their size in bytes.
const PIECES: usize = 1000;
const PIECE: usize = 4096;

/// The number of bytes that are hashed at once.
const CHUNK: usize = 1 << 20;

/// Splits bytes into groups of `WIDTH`.
fn words<const WIDTH: usize>(bytes: &[u8]) -> impl ExactSizeIterator<Item = [u8; WIDTH]> {
    let (words, _) = bytes.as_chunks::<WIDTH>();
    words.iter().copied()
}

/// Reads a file at any position. The operating system caches what is read, as for a memory-mapped file; but if the file
/// is truncated while open, reading returns an error instead of ending the program.
#[derive(Debug)]
pub(super) struct Positioned(File);

impl Positioned {
    pub fn new(file: File) -> Self {
        Self(file)
    }

    /// Fills `bytes` from `place` on.
    #[cfg(unix)]
    pub fn read(&self, place: u64, bytes: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.0, bytes, place)
    }

    /// Fills `bytes` from `place` on.
    #[cfg(windows)]
    pub fn read(&self, mut place: u64, mut bytes: &mut [u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match std::os::windows::fs::FileExt::seek_read(&self.0, bytes, place)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => {
                    place += read as u64;
                    bytes = &mut bytes[read..];
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::TokenWriter;

    /// Opens a file of the ids 0, 1, 2, 0 after `change` has modified its bytes.
    fn opened(change: impl FnOnce(&mut Vec<u8>)) -> Result<TokenFile, DataError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tokens");
        let mut writer = TokenWriter::for_ids(&path, 3, [7; 32]).unwrap();
        writer.document(&[0, 1]).unwrap();
        writer.document(&[2, 0]).unwrap();
        writer.finish().unwrap();
        let mut bytes = fs::read(&path).unwrap();
        change(&mut bytes);
        fs::write(&path, bytes).unwrap();
        TokenFile::open(&path)
    }

    #[test]
    fn ranges() {
        let file = opened(|_| ()).unwrap();
        assert_eq!((file.len(), file.documents(), file.vocab_size()), (4, 2, 3));
        assert_eq!(file.range(0..4).unwrap(), [0, 1, 2, 0]);
        assert!(file.range(4..4).unwrap().is_empty());
        file.verify().unwrap();
        for range in [0..5, 5..5, 0..usize::MAX, usize::MAX..usize::MAX] {
            assert!(matches!(
                file.range(range).unwrap_err(),
                DataError::Read(ReadError::TokenRange { tokens: 4, .. })
            ));
        }
    }

    #[test]
    fn the_fingerprint_samples_files_of_any_size() {
        let of = |change: fn(&mut Vec<u8>)| opened(change).unwrap().fingerprint().unwrap();
        assert_eq!(of(|_| ()), of(|_| ()));
        assert_ne!(of(|_| ()), of(|bytes| bytes[134] = 1), "the last id");
        let folder = tempfile::tempdir().unwrap();
        let large = |id: u32| {
            let path = folder.path().join("a.tokens");
            let mut writer = TokenWriter::for_ids(&path, 3, [7; 32]).unwrap();
            (0..50).for_each(|_| writer.part(&[0; 100_000]).unwrap());
            writer.document(&[id]).unwrap();
            writer.finish().unwrap();
            TokenFile::open(&path).unwrap().fingerprint().unwrap()
        };
        assert_ne!(large(1), large(2));
    }

    #[test]
    fn damage() {
        let cut = opened(|bytes| bytes.truncate(135)).unwrap_err();
        assert!(cut.to_string().contains("it was truncated"), "{cut}");
        assert!(opened(|bytes| bytes.truncate(5)).is_err());
        assert!(opened(|bytes| bytes.clear()).is_err());
        assert!(opened(|bytes| bytes.push(0)).is_err());

        let changed = opened(|bytes| bytes[128] = 1).unwrap();
        assert!(changed.verify().unwrap_err().to_string().contains("checksum"));
        let beyond = opened(|bytes| bytes[130] = 3).unwrap();
        assert_eq!(beyond.range(2..4).unwrap(), [2, 0]);
        let error = beyond.range(0..4).unwrap_err().to_string();
        assert!(error.contains("token 1 is 3, but the vocabulary has 3"), "{error}");
    }

    #[test]
    fn a_file_truncated_while_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tokens");
        let mut writer = TokenWriter::for_ids(&path, 3, [7; 32]).unwrap();
        writer.document(&[1; 100_000]).unwrap();
        writer.finish().unwrap();
        let file = TokenFile::open(&path).unwrap();
        fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1000).unwrap();
        assert_eq!(file.range(0..10).unwrap(), [1; 10]);
        for error in [file.range(90_000..90_010).unwrap_err(), file.verify().unwrap_err()] {
            assert!(error.to_string().contains("it was truncated"), "{error}");
        }
    }

    #[test]
    fn files_that_are_not_token_files() {
        let folder = tempfile::tempdir().unwrap();
        assert!(matches!(TokenFile::open(folder.path()).unwrap_err(), DataError::Io { .. }));
        assert!(matches!(TokenFile::open(folder.path().join("no")).unwrap_err(), DataError::Io { .. }));
        let text = folder.path().join("text");
        fs::write(&text, "a".repeat(200)).unwrap();
        assert!(TokenFile::open(&text).unwrap_err().to_string().contains("FBTOKENS"));
        assert!(!TokenFile::is_one(&text));
    }
}
