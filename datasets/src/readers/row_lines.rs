//! Feeds lines to a CSV parser one at a time.

use std::{
    io::{self, BufRead, Read},
    path::Path,
    sync::Arc,
};

use super::unpacked::Unpacked;
use crate::DataError;

/// The number of newlines returned after the end of the file, one for each read.
///
/// The first ends the last row. Only a row with an open quote reads another.
const AFTER_END: u64 = 2;

/// Feeds a CSV parser one line at a time, so it never reads beyond the current row.
///
/// This way, the reader knows on which line a row begins, regardless of its number of lines and any empty lines before
/// it, and how long a row is before it is in memory.
pub(super) struct RowLines {
    source: Unpacked,
    longest: usize,
    /// The current line, from 1.
    line: u64,
    /// Whether the next byte begins a line.
    at_start: bool,
    /// The first line of the row, or 0 if it has not begun.
    first: u64,
    /// The number of bytes in the row.
    length: usize,
    too_long: bool,
    /// The number of bytes returned after the end of the file.
    after_end: u64,
}

impl RowLines {
    pub(super) fn open(path: &Arc<Path>, longest: usize) -> Result<Self, DataError> {
        let source = Unpacked::open(path)?;
        Ok(Self {
            source,
            longest,
            line: 0,
            at_start: true,
            first: 0,
            length: 0,
            too_long: false,
            after_end: 0,
        })
    }

    /// Starts the next row.
    pub(super) fn begin_row(&mut self) {
        self.first = 0;
        self.length = 0;
    }

    /// Returns the line on which the row begins.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Returns the maximum number of bytes in a row.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    /// Returns whether a row exceeded the maximum. It is then cut short, and nothing follows.
    pub(super) fn is_too_long(&self) -> bool {
        self.too_long
    }

    /// Returns whether the row continues beyond the end of the file.
    pub(super) fn is_beyond_end(&self) -> bool {
        self.after_end == AFTER_END
    }
}

impl Read for RowLines {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.too_long {
            return Ok(0);
        }
        let available = self.source.fill_buf()?;
        if available.is_empty() {
            let Some(byte) = into.first_mut().filter(|_| self.after_end < AFTER_END) else { return Ok(0) };
            *byte = b'\n';
            self.after_end += 1;
            return Ok(1);
        }
        let length = available.len().min(into.len());
        let line = available.iter().take(length).position(|&byte| byte == b'\n');
        let length = line.map_or(length, |end| end + 1);
        let part = &available[..length];
        into[..length].copy_from_slice(part);

        if self.at_start {
            self.line += 1;
        }
        self.at_start = line.is_some();
        if self.first == 0 && part.iter().any(|byte| !b"\r\n".contains(byte)) {
            self.first = self.line;
        }
        if self.first != 0 {
            self.length += length;
            self.too_long = self.length > self.longest;
        }
        self.source.consume(length);
        Ok(length)
    }
}
