//! Append-only files that lose nothing while a disk is full.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, ErrorKind, Write};

/// An append-only file. Bytes that cannot be written stay in memory and are written before later ones, so the file ends
/// up as on a disk with room.
///
/// An attempt may write a part and leave the rest to a later one, so the file may end in the middle of a line while the
/// disk is full.
pub(crate) struct AppendedFile {
    open: Open,
    file: Option<File>,
    pending: VecDeque<u8>,
    /// Whether the file was removed while it was open. What is written to it then is lost.
    is_removed: bool,
}

/// Makes the file, and its folder.
type Open = Box<dyn Fn() -> io::Result<File> + Send>;

impl AppendedFile {
    /// Wraps an open file.
    pub fn new(file: File) -> Self {
        let open = Box::new(|| Err(ErrorKind::NotFound.into()));
        Self { open, file: Some(file), pending: VecDeque::new(), is_removed: false }
    }

    /// Creates the file with `open`, at the first attempt to write that succeeds.
    pub fn later(open: impl Fn() -> io::Result<File> + Send + 'static) -> Self {
        Self { open: Box::new(open), file: None, pending: VecDeque::new(), is_removed: false }
    }

    /// Adds bytes. The next call of [`write_out`](Self::write_out) writes them.
    pub fn add(&mut self, bytes: &[u8]) {
        self.pending.extend(bytes);
    }

    /// Returns the number of bytes that are not written yet.
    pub fn behind(&self) -> usize {
        self.pending.len()
    }

    /// Passes all added bytes to the system.
    ///
    /// # Errors
    ///
    /// The system's error. The next call retries the bytes that were not written. If the file was removed, every call
    /// returns an error that says so.
    pub fn write_out(&mut self) -> io::Result<()> {
        self.is_removed |= self.file.as_ref().is_some_and(is_removed);
        if self.is_removed {
            self.pending.clear();
            let reason = "it was removed, alone or with its folder, and what it held is lost; if the folder is gone, \
                          create it again before the run ends, so that the model can be saved";
            return Err(io::Error::new(ErrorKind::NotFound, reason));
        }
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

/// Returns whether an open file has no name any more, so that what is written to it is lost when it is closed.
fn is_removed(file: &File) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        file.metadata().is_ok_and(|about| about.is_file() && about.nlink() == 0)
    }
    // Other systems remove no file that is open.
    #[cfg(not(unix))]
    {
        let _ = file;
        false
    }
}

impl std::fmt::Debug for AppendedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Appended({:?}, {} bytes behind)", self.file, self.pending.len())
    }
}

impl Drop for AppendedFile {
    fn drop(&mut self) {
        let _ = self.write_out();
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn failed_writes_are_made_up_for_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let (inner, path) = (folder.path().join("inner"), folder.path().join("inner/log"));
        let place = path.clone();
        let mut log = AppendedFile::later(move || File::create(&place));
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
        // Dropping the log writes out the rest.
        log.add(b"last\n");
        drop(log);
        assert_eq!(fs::read_to_string(&path).unwrap(), "first\nsecond\nthird\nlast\n");
    }

    /// The system would take the bytes, and drop them.
    #[cfg(unix)]
    #[test]
    fn a_removed_file_is_an_error_from_then_on() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let mut log = AppendedFile::new(File::create(inner.join("log")).unwrap());
        log.add(b"first\n");
        log.write_out().unwrap();
        fs::remove_dir_all(&inner).unwrap();
        for _ in 0..2 {
            log.add(b"second\n");
            assert!(
                log.write_out().unwrap_err().to_string().contains("it was removed, alone or with its folder")
            );
            assert!(log.write_out().is_err() && log.behind() == 0);
        }
    }

    /// Every write fails, as on a full disk.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_costs_nothing_but_the_attempts() {
        let mut log = AppendedFile::new(File::options().write(true).open("/dev/full").unwrap());
        log.add(b"line\n");
        assert_eq!(log.write_out().unwrap_err().kind(), ErrorKind::StorageFull);
        assert!(log.behind() > 0);
    }
}
