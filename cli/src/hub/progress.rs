//! Tells how far a download is, every few seconds.

use std::time::{Duration, Instant};

/// The time between two lines of a download.
const PAUSE: Duration = Duration::from_secs(5);

/// A download under way.
pub(super) struct DownloadProgress<'a> {
    file: &'a str,
    /// Bytes.
    size: u64,
    say: &'a dyn Fn(&str),
    last: Instant,
}

impl<'a> DownloadProgress<'a> {
    /// Says that a download begins.
    pub fn of(file: &'a str, size: u64, say: &'a dyn Fn(&str)) -> Self {
        say(&format!("downloading {file}, {:.1} MB", size as f64 / 1e6));
        Self { file, size, say, last: Instant::now() }
    }

    /// Says that so many bytes are there, unless it has just said how many.
    pub fn at(&mut self, done: u64) {
        if self.last.elapsed() >= PAUSE {
            self.last = Instant::now();
            let share = 100.0 * done as f64 / self.size.max(1) as f64;
            (self.say)(&format!("downloading {}, {share:.0}%", self.file));
        }
    }
}
