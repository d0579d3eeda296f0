//! Opens a text file, compressed or not.

use std::{
    io::{self, BufRead, BufReader, Cursor, ErrorKind, Read},
    path::Path,
    sync::Arc,
};

use flate2::bufread::GzDecoder;

use crate::{DataError, ReadError, error::Unpacking, ordinary_file};

/// The number of bytes of a file that are read at once.
const BUFFER: usize = 64 << 10;

/// The number of bytes of a text between two reports of progress.
const STEP: u64 = 8 << 20;

/// The first bytes of compressed files, and their compression.
const PACKINGS: [(&[u8], Packing); 5] = [
    (b"\x1f\x8b", Packing::Gzip),
    (b"\x28\xb5\x2f\xfd", Packing::Zstd),
    (b"BZh91AY&SY", Packing::Foreign("bzip2 data")),
    (b"\xfd7zXZ\0", Packing::Foreign("xz data")),
    (b"PK\x03\x04", Packing::Foreign("a zip archive")),
];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Packing {
    None,
    Gzip,
    Zstd,
    Foreign(&'static str),
}

/// The text of a file as bytes, decompressed on the fly, without a byte order mark.
///
/// The compression is detected from the first bytes, not from the name: gzip with any number of members and zeros after
/// them, or zstd with any number of frames. Errors report how far reading got.
pub(super) struct Unpacked {
    path: Arc<Path>,
    packing: Packing,
    inner: Box<dyn BufRead + Send>,
    /// The number of bytes of text returned so far.
    given: u64,
    /// The number of bytes in the byte order mark, which are not returned.
    mark: usize,
}

impl Unpacked {
    /// Opens an ordinary file. Devices and pipes are refused, since they may have no end.
    pub(super) fn open(path: &Arc<Path>) -> Result<Self, DataError> {
        let (packing, packed) = detect(path).map_err(DataError::io(path))?;
        let unpacked: Box<dyn BufRead + Send> = match packing {
            Packing::None => Box::new(packed),
            Packing::Gzip => Box::new(BufReader::with_capacity(BUFFER, GzipMembers::new(packed))),
            Packing::Zstd => {
                let decoder =
                    zstd::stream::read::Decoder::with_buffer(packed).map_err(DataError::io(path))?;
                Box::new(BufReader::with_capacity(BUFFER, decoder))
            }
            Packing::Foreign(found) => return Err(not_text(path, found)),
        };
        let mut unpacked = Self { path: path.clone(), packing, inner: unpacked, given: 0, mark: 0 };

        let mut start = Vec::new();
        unpacked.by_ref().take(3).read_to_end(&mut start).map_err(DataError::io(path))?;
        unpacked.given = 0;
        if start.starts_with(b"\xff\xfe") || start.starts_with(b"\xfe\xff") {
            return Err(not_text(path, "UTF-16 text, which is not UTF-8"));
        }
        if start == b"\xef\xbb\xbf" {
            unpacked.mark = 3;
        } else {
            unpacked.inner = Box::new(Cursor::new(start).chain(unpacked.inner));
        }
        Ok(unpacked)
    }

    pub(super) fn path(&self) -> &Arc<Path> {
        &self.path
    }

    /// Returns the number of bytes in the byte order mark: 3, or 0 if there is none.
    pub(super) fn mark(&self) -> usize {
        self.mark
    }

    /// Returns whether the file is compressed, so that its size does not tell how long the text is.
    pub(super) fn is_packed(&self) -> bool {
        self.packing != Packing::None
    }

    /// Returns the rest of the text, or `None` if it has more than `most` bytes. `progress` is called now and then with
    /// the number of bytes so far.
    pub(super) fn read_text(
        mut self,
        most: u64,
        mut progress: impl FnMut(u64),
    ) -> Result<Option<String>, DataError> {
        let path = self.path.clone();
        let mut bytes = Vec::new();
        loop {
            let left = most.saturating_add(1).saturating_sub(bytes.len() as u64);
            let read = self.by_ref().take(left.min(STEP)).read_to_end(&mut bytes);
            if read.map_err(DataError::io(&path))? == 0 {
                break;
            }
            progress(bytes.len() as u64);
        }
        if bytes.len() as u64 > most {
            return Ok(None);
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            let offset = error.utf8_error().valid_up_to() + self.mark;
            DataError::Read(ReadError::NotUtf8 { path: path.to_path_buf(), offset })
        })?;
        Ok(Some(text))
    }

    /// Adds to a decoder's error how far it got.
    fn failed(&self, error: io::Error) -> io::Error {
        let expected = match self.packing {
            Packing::Gzip => "whole gzip data",
            Packing::Zstd => "whole zstd data",
            Packing::None | Packing::Foreign(_) => return error,
        };
        // The decoder is not at fault if the file cannot be read, or memory is short.
        if error.raw_os_error().is_some() || error.kind() == io::ErrorKind::OutOfMemory {
            return error;
        }
        let given = self.given;
        let problem = if error.kind() == io::ErrorKind::UnexpectedEof {
            "that ends too early".to_owned()
        } else {
            format!("that is damaged ({error})")
        };
        Unpacking { expected, found: format!("data {problem}, after {given} bytes of text") }.into()
    }
}

impl Read for Unpacked {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let available = self.fill_buf()?;
        let length = available.len().min(into.len());
        into[..length].copy_from_slice(&available[..length]);
        self.consume(length);
        Ok(length)
    }
}

impl BufRead for Unpacked {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        // Calls `fill_buf` twice, since the borrow checker cannot see that nothing is borrowed after an error. The
        // second call returns what the first one buffered.
        loop {
            match self.inner.fill_buf() {
                Ok(_) => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        self.inner.fill_buf()
    }

    fn consume(&mut self, length: usize) {
        self.given += length as u64;
        self.inner.consume(length);
    }
}

fn detect(path: &Path) -> io::Result<(Packing, BufReader<impl Read + Send + use<>>)> {
    let mut file = ordinary_file::open(path)?;
    let mut start = Vec::new();
    file.by_ref().take(10).read_to_end(&mut start)?;
    let known = PACKINGS.iter().find(|(magic, _)| start.starts_with(magic));
    let packing = match known {
        Some(&(_, packing)) => packing,
        None if is_skippable_frame(&start) => Packing::Zstd,
        None => Packing::None,
    };
    Ok((packing, BufReader::with_capacity(BUFFER, Cursor::new(start).chain(file))))
}

/// Returns whether zstd data begins with a frame without text, as parallel compressors write it.
fn is_skippable_frame(start: &[u8]) -> bool {
    matches!(start, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..])
}

fn not_text(path: &Path, found: &str) -> DataError {
    DataError::file(path, "UTF-8 text, plain or packed with gzip or zstd", found)
}

/// The text of all members of gzip data, one after the other.
///
/// Zeros after the last member are padding, as for `gzip` itself: tapes and some block devices fill their last block
/// with them. Anything else after a member must be another member.
pub(super) struct GzipMembers<R> {
    /// The member that is read; `None` after the last one.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> GzipMembers<R> {
    pub(super) fn new(packed: R) -> Self {
        Self { member: Some(GzDecoder::new(packed)) }
    }
}

impl<R: BufRead> Read for GzipMembers<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let length = member.read(into)?;
            if length > 0 || into.is_empty() {
                return Ok(length);
            }
            let Some(ended) = self.member.take() else { break };
            let mut packed = ended.into_inner();
            if skip_zeros(&mut packed)? {
                self.member = Some(GzDecoder::new(packed));
            }
        }
        Ok(0)
    }
}

/// Skips zeros. Returns whether anything follows them.
fn skip_zeros(packed: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let (zeros, is_end, all) = match packed.fill_buf() {
            Ok(bytes) => {
                let zeros = bytes.iter().take_while(|&&byte| byte == 0).count();
                (zeros, bytes.is_empty(), zeros == bytes.len())
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        packed.consume(zeros);
        if is_end || !all {
            return Ok(!is_end);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write};

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(text: &[u8]) -> Vec<u8> {
        zstd::encode_all(text, 3).unwrap()
    }

    fn read(bytes: &[u8]) -> Result<String, DataError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), bytes).unwrap();
        Ok(Unpacked::open(&file.path().into())?.read_text(u64::MAX, |_| ())?.unwrap())
    }

    #[test]
    fn any_packing() {
        let skippable = [b"\x50\x2a\x4d\x18\x02\0\0\0ab".as_slice(), &zstd(b"x")].concat();
        for (bytes, text) in [
            (b"".to_vec(), ""),
            (b"x".to_vec(), "x"),
            ([gzip(b"one "), gzip(b""), gzip(b"two")].concat(), "one two"),
            // `gzip` accepts zeros after the last member, and between members.
            ([gzip(b"one"), vec![0; 3]].concat(), "one"),
            ([gzip(b"one "), vec![0; 200_000], gzip(b"two"), vec![0; 512]].concat(), "one two"),
            ([zstd(b"one "), zstd(b"two")].concat(), "one two"),
            (skippable, "x"),
            (b"\xef\xbb\xbfbom".to_vec(), "bom"),
            (gzip(b"\xef\xbb\xbfbom"), "bom"),
            (zstd(b"\xef\xbb\xbf"), ""),
            (b"\xef\xbb\xbf\xef\xbb\xbf".to_vec(), "\u{feff}"),
        ] {
            assert_eq!(read(&bytes).unwrap(), text, "{bytes:?}");
        }
    }

    #[test]
    fn truncated() {
        let text: Vec<u8> = (0..100_000_u32).flat_map(|n| n.to_string().into_bytes()).collect();
        for (name, packed) in [("gzip", gzip(&text)), ("zstd", zstd(&text))] {
            for kept in [packed.len() / 2, packed.len() - 1, 11] {
                let error = read(&packed[..kept]).unwrap_err();
                assert!(matches!(error, DataError::Read(ReadError::File { .. })), "{error:?}");
                let expected = format!("expected whole {name} data, found data that ends too early, after ");
                assert!(error.to_string().contains(&expected), "{error}");
            }
        }
    }

    /// The path and its permissions have nothing to do with it.
    #[test]
    fn damaged_data_is_not_a_matter_of_permissions() {
        let text: Vec<u8> = (0..100_000_u32).flat_map(|n| n.to_string().into_bytes()).collect();
        let mut cases = vec![("gzip", [gzip(b"one"), b"two, which is no member".to_vec()].concat())];
        for (name, mut packed) in [("gzip", gzip(&text)), ("zstd", zstd(&text))] {
            let middle = packed.len() / 2;
            packed[middle..middle + 64].fill(0xff);
            cases.push((name, packed));
        }
        for (name, packed) in cases {
            let error = read(&packed).unwrap_err().to_string();
            let expected = format!("expected whole {name} data, found data that ");
            assert!(error.contains(&expected) && !error.contains("permissions"), "{error}");
        }
    }

    #[test]
    fn a_text_beyond_the_bound() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), gzip(&[b'a'; 20 << 20])).unwrap();
        let read = |most| {
            let mut seen = Vec::new();
            let text = Unpacked::open(&file.path().into()).unwrap().read_text(most, |bytes| seen.push(bytes));
            (text.unwrap().map(|text| text.len()), seen)
        };
        assert_eq!(read(20 << 20), (Some(20 << 20), vec![8 << 20, 16 << 20, 20 << 20]));
        // Nothing is read beyond the bound.
        assert_eq!(read((20 << 20) - 1), (None, vec![8 << 20, 16 << 20, 20 << 20]));
        assert_eq!(read(10), (None, vec![11]));
        assert_eq!(read(0), (None, vec![1]));
    }

    #[test]
    fn not_text() {
        for (bytes, found) in [
            (b"\xff\xfea\0".as_slice(), "found UTF-16 text"),
            (b"\xfe\xff\0a", "found UTF-16 text"),
            (&gzip(b"\xff\xfea\0"), "found UTF-16 text"),
            (b"PK\x03\x04....", "found a zip archive"),
            (b"\xef\xbb\xbf\xff", "the byte at offset 3 does not start"),
        ] {
            let error = read(bytes).unwrap_err().to_string();
            assert!(error.contains(found), "{error}");
        }
    }

    #[test]
    fn a_folder_with_the_name_of_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.txt");
        fs::create_dir(&path).unwrap();
        let error = Unpacked::open(&path.into()).err().unwrap().to_string();
        assert!(error.contains("this is a folder"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn an_endless_device_is_an_error() {
        let error = Unpacked::open(&Path::new("/dev/zero").into()).err().unwrap();
        assert!(error.to_string().contains("not a regular file"), "{error}");
    }
}
