//! Watching a run from another terminal.
//!
//! The run writes its log without knowing its readers. This module follows the log as it grows, even if the run is
//! killed and resumes from a checkpoint. It changes nothing in the folder.

mod follow;
mod plain;
#[cfg(feature = "tui")]
mod screen;
#[cfg(feature = "tui")]
mod terminal;
mod watched;

#[cfg(feature = "tui")]
use std::io::IsTerminal;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use thiserror::Error;

use firebrick::observe::plain_text::plain as plain_text;
#[cfg(feature = "tui")]
use firebrick::observe::terminal::is_drawable;
use plain::Plain;
use watched::Watch;

/// The time between two looks at the folder.
const LOOK: Duration = Duration::from_millis(500);

/// Options of watching a run.
#[derive(Clone, Debug, Default)]
pub struct WatchOptions {
    /// Prints lines, even on a terminal.
    pub plain: bool,
    /// The run's total number of updates, if known, for the progress and the remaining time.
    pub total_updates: Option<u64>,
    /// Ends the watch when it becomes true, for example from a signal handler.
    pub stop: Arc<AtomicBool>,
}

/// Errors of watching a run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WatchError {
    /// The folder does not exist.
    #[error("`{folder}` is not a folder: name the output folder of a run")]
    NoFolder {
        /// The folder.
        folder: PathBuf,
    },
    /// The folder holds something else than a run.
    #[error(
        "`{folder}` is not the output folder of a run: it holds `{found}`, and neither a run's log nor its lock; `firebrick runs FOLDER` lists the runs in a folder"
    )]
    NoRun {
        /// The folder.
        folder: PathBuf,
        /// The name of something in it.
        found: String,
    },
    /// The log exists but cannot be read.
    #[error("reading `{path}`: {error}")]
    Read {
        /// The log.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// The run's process is gone.
    #[error(
        "`{name}`: the process of this run is gone after update {updates}, and it left no report: it was killed, or its error said why; `firebrick train RUN.ron --resume` goes on from its last checkpoint, and `firebrick export` makes a folder of its best weights"
    )]
    Gone {
        /// The name of the run's folder.
        name: String,
        /// The number of updates in the log.
        updates: u64,
    },
    /// The terminal cannot be drawn on, or the lines cannot be written.
    #[error("showing the run: {0}; `--plain` needs no terminal")]
    Show(io::Error),
}

/// Shows a run that another process trains. It returns when the run has written its report, you press `q` or Ctrl-C,
/// [`stop`](WatchOptions::stop) is set, or the reader of the lines is gone. If the run has not started yet, it waits.
///
/// On a terminal it fills the screen; elsewhere it writes lines to standard output, like training itself.
///
/// # Errors
///
/// The folder does not exist or is not a run's, its log cannot be read, or the terminal cannot be drawn on; or the run's
/// process is gone and has left no report.
///
/// ```
/// use firebrick_cli::watch::{WatchOptions, watch};
///
/// let folder = std::env::temp_dir().join("firebrick-watch-example");
/// std::fs::create_dir_all(&folder)?;
/// std::fs::write(folder.join("metrics.jsonl"), "{\"kind\":\"train\",\"step\":1,\"loss\":2.5}\n")?;
/// std::fs::write(folder.join("report.json"), "{\"steps\":1,\"train_loss\":2.5}")?;
///
/// watch(&folder, &WatchOptions { plain: true, ..WatchOptions::default() })?;
/// // step      1  loss 2.5000  skipped 0
/// // finished after 1 update; train loss 2.5000
/// # std::fs::remove_dir_all(folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn watch(folder: &Path, options: &WatchOptions) -> Result<(), WatchError> {
    let watch = Watch::new(folder, options.total_updates)?;
    #[cfg(feature = "tui")]
    if !options.plain && io::stdout().is_terminal() && io::stdin().is_terminal() && is_drawable() {
        return terminal::watch_on_terminal(watch, options);
    }
    watch_as_lines(watch, options, &mut io::stdout())
}

fn watch_as_lines(mut watch: Watch, options: &WatchOptions, out: &mut impl Write) -> Result<(), WatchError> {
    let mut plain = Plain::default();
    while !options.stop.load(Ordering::Relaxed) {
        let news = watch.look()?;
        let mut lines = Vec::new();
        let told = plain.tell(&watch.watched, &news, &mut lines);
        match told.and_then(|()| write_plain(&lines, out)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(WatchError::Show(error)),
        }
        if watch.watched.finished.is_some() {
            return Ok(());
        }
        watch.watched.require_process()?;
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Writes lines that name what other programs wrote into the log.
fn write_plain(lines: &[u8], out: &mut impl Write) -> io::Result<()> {
    out.write_all(plain_text(&String::from_utf8_lossy(lines)).as_bytes())?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn finished_run() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let log = "{\"kind\":\"train\",\"step\":1,\"loss\":2.5}\n";
        fs::write(folder.path().join("metrics.jsonl"), log).unwrap();
        fs::write(folder.path().join("report.json"), "{\"steps\":1,\"train_loss\":2.5}").unwrap();
        folder
    }

    #[test]
    fn watching_ends_with_the_run() {
        let folder = finished_run();
        let mut out = Vec::new();
        let watch = Watch::new(folder.path(), None).unwrap();
        watch_as_lines(watch, &WatchOptions::default(), &mut out).unwrap();
        let lines = String::from_utf8(out).unwrap();
        assert_eq!(
            lines,
            "step      1  loss 2.5000  skipped 0\nfinished after 1 update; train loss 2.5000\n"
        );
    }

    #[test]
    fn watching_ends_on_request_or_when_nobody_reads() {
        let folder = tempfile::tempdir().unwrap();
        let options = WatchOptions::default();
        options.stop.store(true, Ordering::Relaxed);
        watch(folder.path(), &options).unwrap();

        struct Left;
        impl Write for Left {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let watch = Watch::new(folder.path(), None).unwrap();
        watch_as_lines(watch, &WatchOptions::default(), &mut Left).unwrap();
    }
}
