//! A file that is read at any place.

use std::{fs::File, io};

/// A file whose bytes are read where they are asked for. What was read once the system keeps in memory, as it does of a
/// file that is mapped; but one that is cut short while it is open is an error, and does not end the program.
#[derive(Debug)]
pub(super) struct Positioned(File);

impl Positioned {
    pub fn new(file: File) -> Self {
        Self(file)
    }

    /// Fills `bytes` with those that begin at `place`.
    #[cfg(unix)]
    pub fn read(&self, place: u64, bytes: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.0, bytes, place)
    }

    /// Fills `bytes` with those that begin at `place`.
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
