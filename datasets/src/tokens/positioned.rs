//! A file with random access.

use std::{fs::File, io};

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
