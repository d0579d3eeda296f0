//! Reads small files, and writes them atomically.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{DataError, ordinary_file};

/// Reads an ordinary file. Devices and pipes are refused, since they may have no end.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, DataError> {
    let mut bytes = Vec::new();
    let read = ordinary_file::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
    read.map_err(DataError::io(path))?;
    Ok(bytes)
}

/// Held while a small file is written.
static WRITING: Mutex<()> = Mutex::new(());

/// Waits for the small file that is being written, such as a tokenizer's, and writes no other while the guard is held. A
/// process that ends without unwinding, as a signal ends it, holds it until then, so that it leaves no temporary file.
pub fn hold_writes() -> MutexGuard<'static, ()> {
    WRITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a temporary file next to `path`, syncs it and renames it. The old file stays until the new one is complete.
pub(crate) fn write(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let staged = path.with_file_name(format!(".staged-{}-{name}", std::process::id()));
    let _writing = hold_writes();
    let written = File::create(&staged).and_then(|mut file| {
        file.write_all(bytes.as_ref())?;
        file.sync_all()?;
        fs::rename(&staged, path)
    });
    written.inspect_err(|_| drop(fs::remove_file(&staged)))
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn nothing_is_written_while_writes_are_held() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        let held = hold_writes();
        let writing = thread::spawn({
            let path = path.clone();
            move || write(&path, "text").unwrap()
        });
        thread::sleep(Duration::from_millis(100));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        drop(held);
        writing.join().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "text");
    }

    #[test]
    fn files_are_replaced_atomically() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokenizer.json");
        for text in ["first", "second"] {
            write(&path, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        fs::create_dir(folder.path().join("in_the_way")).unwrap();
        assert!(write(&folder.path().join("in_the_way"), "third").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
