//! Files that grow, and that miss nothing where a disk was full for a while.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Write};

/// A file that bytes are added to. What cannot be written is kept in memory, and written before what is added later: the
/// file is what it would be on a disk with room, as far as it goes.
///
/// A part of what is added may be written, and the rest with a later attempt, so that the file may end in the middle
/// of a line while its disk is full.
pub(crate) struct Appended {
    open: Open,
    file: Option<File>,
    pending: VecDeque<u8>,
}

/// Makes the file, and its folder.
type Open = Box<dyn Fn() -> io::Result<File> + Send>;

impl Appended {
    /// A file that is open already.
    pub fn new(file: File) -> Self {
        let open = Box::new(|| Err(ErrorKind::NotFound.into()));
        Self { open, file: Some(file), pending: VecDeque::new() }
    }

    /// A file that `open` makes at the first attempt to write it that succeeds.
    pub fn later(open: impl Fn() -> io::Result<File> + Send + 'static) -> Self {
        Self { open: Box::new(open), file: None, pending: VecDeque::new() }
    }

    /// Adds bytes, which are written with the next call of [`write_out`](Self::write_out).
    pub fn add(&mut self, bytes: &[u8]) {
        self.pending.extend(bytes);
    }

    /// Bytes that are still to be written.
    pub fn behind(&self) -> usize {
        self.pending.len()
    }

    /// Hands all that was added over to the system.
    ///
    /// # Errors
    ///
    /// The system's. What is not written then is tried again with the next call.
    pub fn write_out(&mut self) -> io::Result<()> {
        while self.behind() > 0 {
            let file = match &mut self.file {
                Some(file) => file,
                none => none.insert((self.open)()?),
            };
            match file.write(self.pending.as_slices().0) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => drop(self.pending.drain(..written)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Appended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Appended({:?}, {} bytes behind)", self.file, self.pending.len())
    }
}

impl Drop for Appended {
    fn drop(&mut self) {
        let _ = self.write_out();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_cannot_be_written_is_written_later_and_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let (inner, path) = (folder.path().join("inner"), folder.path().join("inner/log"));
        let place = path.clone();
        let mut log = Appended::later(move || File::create(&place));
        for line in ["first\n", "second\n"] {
            log.add(line.as_bytes());
            assert_eq!(log.write_out().unwrap_err().kind(), ErrorKind::NotFound);
            assert!(log.behind() > 0);
        }
        fs::create_dir(&inner).unwrap();
        log.add(b"third\n");
        log.write_out().unwrap();
        assert_eq!(log.behind(), 0);
        assert_eq!(fs::read_to_string(&path).unwrap(), "first\nsecond\nthird\n");
        // What was not written out is, when nobody has it any more.
        log.add(b"last\n");
        drop(log);
        assert_eq!(fs::read_to_string(&path).unwrap(), "first\nsecond\nthird\nlast\n");
    }

    /// Each write of it fails as on a disk that is full.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_costs_nothing_but_the_attempts() {
        let mut log = Appended::new(File::options().write(true).open("/dev/full").unwrap());
        log.add(b"line\n");
        assert_eq!(log.write_out().unwrap_err().kind(), ErrorKind::StorageFull);
        assert!(log.behind() > 0);
    }
}
