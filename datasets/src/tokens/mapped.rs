//! A file as memory.

use std::{fs::File, io, ops::Deref};

use memmap2::Mmap;

/// The bytes of a file that nobody changes while they are read.
#[derive(Debug)]
pub(super) struct Mapped(Mmap);

impl Mapped {
    /// Maps a file.
    #[allow(unsafe_code, reason = "a memory map is what makes a file larger than memory cheap to read")]
    pub fn new(file: &File) -> io::Result<Self> {
        // SAFETY: the bytes are only ever read, as numbers for which every bit pattern is valid,
        // and each id is checked when it is read. What Rust cannot rule out is that another process
        // changes the file meanwhile: then ids differ from one reading to the next, or, if it is
        // made shorter, the system ends the program with SIGBUS. A token file is written once,
        // under another name, and renamed when it is whole; `TokenFile` says not to change it.
        unsafe { Mmap::map(file) }.map(Self)
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
