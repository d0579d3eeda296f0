//! The report page of a run: `report.html`, made from the files of its output folder.
//!
//! The page is a single self-contained file: it opens from a disk, in a mail or on a server, in light and in dark
//! mode, and it prints. It shows the key numbers, curves of the logged values, skipped steps with their reasons, the
//! timelines of steps, checkpoints, each rank, the model's predictions or generated text, and the run file.
//!
//! A log of any length is read line by line in bounded memory. A curve is drawn with about 1500 points: the lowest
//! and the highest reading of each stretch, so a spike of one step among millions is visible. All text from the files
//! is escaped, so it is never parsed as markup. A run that is in progress, or was killed, also has a page, which says
//! what is missing.

pub(crate) mod axis;
pub(crate) mod chart;
pub(crate) mod curve;
pub(crate) mod escape;
pub(crate) mod finished;
mod marks;
pub(crate) mod number;
pub(crate) mod page;
mod predictions;
pub(crate) mod record;
pub(crate) mod tables;
mod timeline;

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

use firebrick::observe::timeline::{StepTimeline, file_name, step_of};
use firebrick::saving::Staged;

use finished::Finished;
use page::Page;
use predictions::Predictions;
use record::Record;

/// The page's file name.
const PAGE: &str = "report.html";
/// The maximum number of timelines to show: the last ones.
const MOST_TIMELINES: usize = 4;
/// The maximum number of bytes to read of a timeline.
const MOST_OF_TIMELINE: u64 = 64 << 20;
/// The maximum number of bytes to read of the sample, the run file and the report.
const MOST_TEXT: u64 = 1 << 20;

/// Errors of making a page.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReportPageError {
    /// The folder is not the output folder of a run.
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
        /// The cause.
        error: io::Error,
    },
    /// The page cannot be written.
    #[error("writing `{path}`: {error}; the folder must be writable and its disk not full")]
    Write {
        /// The page.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
}

/// Writes `report.html` into a run's output folder, and returns its path. An existing page is replaced once the new
/// one is complete.
///
/// `versions` are the names and versions of the run's software, to be shown on the page.
///
/// # Errors
///
/// The folder has no `metrics.jsonl`, a file of the run cannot be read, or the page cannot be written.
///
/// ```
/// let folder = std::env::temp_dir().join("firebrick-report-page-example");
/// std::fs::create_dir_all(&folder)?;
/// std::fs::write(folder.join("metrics.jsonl"), "{\"kind\":\"train\",\"step\":1,\"loss\":2.5}\n")?;
///
/// let versions = [("firebrick".to_string(), "0.1.0".to_string())];
/// let page = firebrick_cli::report_page::write(&folder, &versions)?;
/// assert!(std::fs::read_to_string(page)?.contains("2.5000"));
/// # std::fs::remove_dir_all(folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn write(folder: &Path, versions: &[(String, String)]) -> Result<PathBuf, ReportPageError> {
    let html = read(folder, versions)?.html();
    let path = folder.join(PAGE);
    save(&path, &html)?;
    Ok(path)
}

/// Writes a page. An existing file is replaced once the new one is complete.
pub(crate) fn save(path: &Path, html: &str) -> Result<(), ReportPageError> {
    let written = Staged::create(path).and_then(|mut file| {
        file.write_all(html.as_bytes())?;
        file.finish()
    });
    written.map_err(|error| ReportPageError::Write { path: path.into(), error })
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
    let timelines = timelines(folder, &mut damaged)?;
    let full = folder.canonicalize().unwrap_or_else(|_| folder.into());
    Ok(Page {
        name: full.file_name().unwrap_or(full.as_os_str()).to_string_lossy().into_owned(),
        record,
        log_written,
        report,
        predictions,
        timelines,
        // Without a sample that cannot be read, the page still shows the run.
        sample: text(&folder.join("sample.txt")).unwrap_or_default(),
        run: text(&folder.join("run.ron"))?,
        versions: versions.to_vec(),
        damaged,
    })
}

/// Reads the timelines of the last steps that have one, in the order of the steps.
fn timelines(folder: &Path, damaged: &mut Vec<String>) -> Result<Vec<StepTimeline>, ReportPageError> {
    let entries =
        fs::read_dir(folder).map_err(|error| ReportPageError::Read { path: folder.into(), error })?;
    let mut steps: Vec<u64> =
        entries.flatten().filter_map(|entry| step_of(entry.file_name().to_str()?)).collect();
    steps.sort_unstable();
    let mut timelines = Vec::new();
    for step in steps.split_off(steps.len().saturating_sub(MOST_TIMELINES)) {
        let name = file_name(step);
        let path = folder.join(&name);
        let Some(file) = open(&path)? else { continue };
        let mut text = String::new();
        let read = file.take(MOST_OF_TIMELINE).read_to_string(&mut text);
        match read.ok().and_then(|_| StepTimeline::parse(&text)) {
            Some(timeline) => timelines.push(timeline),
            None => damaged.push(format!("{name} is not a timeline; it was passed over.")),
        }
    }
    Ok(timelines)
}

/// Opens a file, if it exists.
fn open(path: &Path) -> Result<Option<File>, ReportPageError> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ReportPageError::Read { path: path.into(), error }),
    }
}

/// The start of a text file, if it exists.
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
