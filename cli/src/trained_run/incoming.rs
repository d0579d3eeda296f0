//! Lines that come while others are answered.

use std::io::{self, BufRead};
use std::iter;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;

/// The number of lines that are answered together.
pub(super) const TOGETHER: usize = 256;

/// A line, counted from 1.
pub(super) type Line = (u64, io::Result<String>);

/// The lines of an input that may wait for answers, such as a terminal or a pipe.
pub(super) struct Incoming(Receiver<Line>);

impl Incoming {
    /// Starts to read. The thread ends with the input, or when this value is dropped. Nothing waits for it: a read cannot
    /// be interrupted.
    pub fn of(lines: Box<dyn BufRead + Send>) -> Self {
        let (sender, read) = sync_channel(TOGETHER);
        thread::spawn(move || {
            for line in (1..).zip(lines.lines()) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self(read)
    }

    /// Waits for a line, and returns it with those that have come by then, at most `most`. `None` at the end.
    pub fn next(&self, most: usize) -> Option<impl Iterator<Item = Line> + '_> {
        let first = self.0.recv().ok()?;
        Some(iter::once(first).chain(self.0.try_iter().take(most.saturating_sub(1))))
    }
}
