//! A run as one page: `report.html`, made of the files of its output folder.
//!
//! The page is a single file without anything from elsewhere: it opens from a disk, in a mail or on a server, in
//! light and in dark, and it prints. It holds the numbers that matter, curves of what the log has, what was skipped
//! and why, the checkpoints, each rank, what the model wrote or predicted, and the run file.
//!
//! A log of any length is read line by line in bounded memory. A curve is drawn with about 1500 points: the lowest
//! and the highest reading of each stretch, so that a spike of one step among millions is seen. Whatever text stands
//! in the files is text on the page too, and never markup. A run that is still going on, or was killed, has a page
//! as well: it tells what is missing.

pub(crate) mod axis;
mod chart;
pub(crate) mod curve;
mod escape;
pub(crate) mod finished;
pub(crate) mod log_line;
mod marks;
pub(crate) mod number;
mod page;
mod predictions;
pub(crate) mod record;
mod tables;

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

use finished::Finished;
use page::Page;
use predictions::Predictions;
use record::Record;

/// The page's name.
const PAGE: &str = "report.html";
/// The most bytes of the sample, of the run file and of the report that are read.
const MOST_TEXT: u64 = 1 << 20;

/// Why a run has no page.
#[derive(Debug, Error)]
pub enum ReportPageError {
    /// The folder is not one that a run wrote into.
    #[error("`{folder}` has no metrics.jsonl: name the output folder of a run")]
    NoRun {
        /// The folder.
        folder: PathBuf,
    },
    /// A file of the run cannot be read.
    #[error("reading `{path}`: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The page cannot be written.
    #[error("writing `{path}`: {error}; the folder must be writable and its disk not full")]
    Write {
        /// The page.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// Writes `report.html` into a run's output folder, and returns where it is. One that is there is replaced when the
/// new one is whole.
///
/// `versions` are names and versions of what made the run, as they are shown.
///
/// # Errors
///
/// The folder has no `metrics.jsonl`, a file of the run cannot be read, or the page not be written.
///
/// ```
/// let folder = std::env::temp_dir().join("firebrick-report-page-example");
/// std::fs::create_dir_all(&folder)?;
/// std::fs::write(folder.join("metrics.jsonl"), "{\"kind\":\"train\",\"step\":1,\"loss\":2.5}\n")?;
///
/// let versions = [("firebrick".to_string(), "0.1.0".to_string())];
/// let page = firebrick::report_page::write(&folder, &versions)?;
/// assert!(std::fs::read_to_string(page)?.contains("2.5000"));
/// # std::fs::remove_dir_all(folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write(folder: &Path, versions: &[(String, String)]) -> Result<PathBuf, ReportPageError> {
    let html = read(folder, versions)?.html();
    let path = folder.join(PAGE);
    // Of this process alone: two that write the page do not meet.
    let staged = folder.join(format!(".staged-{}-{PAGE}", std::process::id()));
    let written = write_synced(&staged, &html).and_then(|()| fs::rename(&staged, &path));
    match written {
        Ok(()) => Ok(path),
        Err(error) => {
            let _ = fs::remove_file(&staged);
            Err(ReportPageError::Write { path, error })
        }
    }
}

fn write_synced(path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// Reads the files of a run.
fn read(folder: &Path, versions: &[(String, String)]) -> Result<Page, ReportPageError> {
    let log = folder.join("metrics.jsonl");
    let file = match open(&log)? {
        Some(file) => file,
        None => return Err(ReportPageError::NoRun { folder: folder.into() }),
    };
    let log_written = file.metadata().and_then(|data| data.modified()).ok();
    let read = |path: &Path| {
        let path = path.to_path_buf();
        move |error| ReportPageError::Read { path, error }
    };
    let record = Record::read(BufReader::new(file)).map_err(read(&log))?;
    let path = folder.join("predictions.jsonl");
    let predictions = match open(&path)? {
        Some(file) => Predictions::read(BufReader::new(file)).map_err(read(&path))?,
        None => Predictions::default(),
    };
    let mut damaged = Vec::new();
    let path = folder.join("report.json");
    let report = text(&path)?.and_then(|text| match Finished::parse(&text) {
        Some(report) => Some((report, fs::metadata(&path).and_then(|data| data.modified()).ok())),
        None => {
            damaged.push("report.json is not a report; it was passed over.".into());
            None
        }
    });
    let full = folder.canonicalize().unwrap_or_else(|_| folder.into());
    Ok(Page {
        name: full.file_name().unwrap_or(full.as_os_str()).to_string_lossy().into_owned(),
        record,
        log_written,
        report,
        predictions,
        sample: text(&folder.join("sample.txt"))?,
        run: text(&folder.join("run.ron"))?,
        versions: versions.to_vec(),
        damaged,
    })
}

/// A file, if it is there.
fn open(path: &Path) -> Result<Option<File>, ReportPageError> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ReportPageError::Read { path: path.into(), error }),
    }
}

/// The start of a text file, if it is there.
fn text(path: &Path) -> Result<Option<String>, ReportPageError> {
    let Some(file) = open(path)? else { return Ok(None) };
    let mut bytes = Vec::new();
    let read = file.take(MOST_TEXT).read_to_end(&mut bytes);
    read.map_err(|error| ReportPageError::Read { path: path.into(), error })?;
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    if bytes.len() as u64 == MOST_TEXT {
        text += "\n\u{2026} and more, which is not shown here\n";
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests;
