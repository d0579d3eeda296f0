//! An event file in the folder that TensorBoard reads.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use thiserror::Error;

use super::event;
use super::event::write_record;
use crate::TrainError;
use crate::files::appended::AppendedFile;

/// The prefix of TensorBoard's file names; the second of creation follows.
const PREFIX: &str = "events.out.tfevents.";

/// The maximum number of bytes to hold back, unless writing fails.
const HELD: usize = 1 << 13;

/// An event file cannot be written.
#[derive(Debug, Error)]
#[error("{doing} `{path}` for TensorBoard: {error}; the folder must be writable and its disk not full")]
pub struct TensorBoardError {
    /// The operation that failed.
    pub doing: &'static str,
    /// The file or its folder.
    pub path: PathBuf,
    /// The cause.
    pub error: io::Error,
}

impl From<TensorBoardError> for TrainError {
    fn from(TensorBoardError { path, doing, error }: TensorBoardError) -> Self {
        Self::file(path, doing, error)
    }
}

/// Writes events for TensorBoard into one file. A few kilobytes of them are held back until [`flush`](Self::flush)
/// passes them to the operating system, or this is dropped. Events that cannot be written are kept and retried with
/// the next call.
///
/// ```
/// use firebrick::observe::tensorboard::TensorBoard;
///
/// let folder = std::env::temp_dir().join("firebrick-tensorboard-example");
/// let mut board = TensorBoard::create(&folder)?;
/// board.scalar("train/loss", 1, 2.5, 1_700_000_000.0)?;
/// board.text("sample", 1, "to be or not to be")?;
/// board.flush()?;
/// // tensorboard --logdir FOLDER
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), firebrick::observe::tensorboard::TensorBoardError>(())
/// ```
#[derive(Debug)]
pub struct TensorBoard {
    path: PathBuf,
    file: AppendedFile,
}

impl TensorBoard {
    /// Creates a file in this folder for a new run; creates the folder if needed. TensorBoard reads all files of a
    /// folder as one run, and drops the events of earlier files.
    ///
    /// # Errors
    ///
    /// The folder or the file cannot be created.
    pub fn create(folder: &Path) -> Result<Self, TensorBoardError> {
        Self::open(folder, 0)
    }

    /// Creates a file for a run that resumes after this many updates. TensorBoard drops the events of later updates
    /// in earlier files, since these updates are repeated.
    ///
    /// # Errors
    ///
    /// The errors of [`create`](Self::create).
    pub fn resume(folder: &Path, updates: u64) -> Result<Self, TensorBoardError> {
        Self::open(folder, updates.saturating_add(1))
    }

    /// Creates a file that invalidates earlier files from this step on.
    fn open(folder: &Path, from: u64) -> Result<Self, TensorBoardError> {
        let failed = |doing, path: &Path| {
            let path = path.to_path_buf();
            move |error| TensorBoardError { doing, path, error }
        };
        fs::create_dir_all(folder).map_err(failed("making the folder", folder))?;
        // TensorBoard reads the files in order of their names, so a later file needs a later second, whatever the
        // clock says.
        let second = newest(folder).map_err(failed("reading the folder", folder))?;
        let second = second.map_or(0, |second| second.saturating_add(1)).max(now() as u64);
        let path = folder.join(format!("{PREFIX}{second:010}.{}.{}.0", host(), std::process::id()));
        let file = File::create_new(&path).map_err(failed("creating", &path))?;
        let mut board = Self { path, file: AppendedFile::new(file) };
        board.write(&event::file_version(now()))?;
        // Even in the first file: TensorBoard treats only the second start as a resumed run.
        board.write(&event::session_start(now(), from))?;
        board.flush()?;
        Ok(board)
    }

    /// Adds a number for a step, measured `wall_time_seconds` after the start of 1970. TensorBoard stores it in single
    /// precision.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn scalar(
        &mut self,
        tag: &str,
        step: u64,
        value: f64,
        wall_time_seconds: f64,
    ) -> Result<(), TensorBoardError> {
        self.write(&event::scalars(wall_time_seconds, step, &[(tag, value)]))
    }

    /// Adds several numbers for a step, measured now.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn scalars<T: AsRef<str>>(&mut self, step: u64, values: &[(T, f64)]) -> Result<(), TensorBoardError> {
        self.write(&event::scalars(now(), step, values))
    }

    /// Adds a text for a step, which TensorBoard shows as Markdown.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn text(&mut self, tag: &str, step: u64, text: &str) -> Result<(), TensorBoardError> {
        self.write(&event::text(now(), step, tag, text))
    }

    /// Passes all events to the operating system, so that TensorBoard shows them and a killed run keeps them.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn flush(&mut self) -> Result<(), TensorBoardError> {
        let flushed = self.file.write_out();
        flushed.map_err(|error| TensorBoardError { doing: "writing", path: self.path.clone(), error })
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether some events are still held back.
    pub fn holds_back(&self) -> bool {
        self.file.behind() > 0
    }

    fn write(&mut self, event: &[u8]) -> Result<(), TensorBoardError> {
        let mut record = Vec::new();
        let written = write_record(&mut record, event);
        written.map_err(|error| TensorBoardError { doing: "writing", path: self.path.clone(), error })?;
        self.file.add(&record);
        if self.file.behind() < HELD { Ok(()) } else { self.flush() }
    }
}

/// Seconds since the start of 1970.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// The latest second in the names of event files.
fn newest(folder: &Path) -> io::Result<Option<u64>> {
    let mut newest = None;
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let second =
            name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('.').next()?.parse().ok());
        newest = newest.max(second);
    }
    Ok(newest)
}

/// The name of this machine, restricted to characters that are valid in file names.
pub(crate) fn host() -> String {
    let name = fs::read_to_string("/proc/sys/kernel/hostname")
        .ok()
        .or_else(|| std::env::var("HOSTNAME").ok())
        .or_else(|| std::env::var("COMPUTERNAME").ok())
        .unwrap_or_default();
    let kept = |letter: &char| letter.is_ascii_alphanumeric() || *letter == '-';
    let name: String = name.trim().chars().filter(kept).take(64).collect();
    if name.is_empty() { "host".into() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_comes_after_those_that_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("tensorboard");
        let first = TensorBoard::create(&inner).unwrap();
        let second = TensorBoard::resume(&inner, 7).unwrap();
        let late = inner.join(format!("{PREFIX}9999999998.other.1.0"));
        fs::write(&late, "").unwrap();
        let third = TensorBoard::create(&inner).unwrap();
        let paths = [first.path(), second.path(), &late, third.path()];
        assert!(paths.is_sorted_by(|one, other| one < other), "{paths:?}");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = TensorBoard::create(&file.join("inner")).unwrap_err().to_string();
        assert!(error.contains("making the folder") && error.contains("inner"), "{error}");
    }

    #[test]
    fn what_is_flushed_is_in_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let mut board = TensorBoard::create(folder.path()).unwrap();
        let before = fs::metadata(board.path()).unwrap().len();
        board.scalar("train/loss", 1, 0.5, 1.0).unwrap();
        board.flush().unwrap();
        let mut record = Vec::new();
        write_record(&mut record, &event::scalars(1.0, 1, &[("train/loss", 0.5)])).unwrap();
        let file = fs::read(board.path()).unwrap();
        assert_eq!(file.len() as u64, before + record.len() as u64);
        assert!(file.ends_with(&record));
    }
}
