//! Reads a file line by line.

use std::{
    io::{self, BufRead},
    path::Path,
    sync::Arc,
};

use super::unpacked::Unpacked;
use crate::{DataError, RecordPlace};

/// The default maximum number of bytes in a record: 64 MiB.
///
/// It keeps a file without line ends, or a small compressed file that unpacks to a huge one, from filling the memory.
pub(super) const LONGEST_RECORD: usize = 64 << 20;

/// Yields the lines of a file, numbered from 1, without their ends (`\n` or `\r\n`).
///
/// After an error about one record, here a line, it continues with the next line.
pub(super) struct Lines {
    source: Unpacked,
    longest: usize,
    /// The number of the last line read.
    number: u64,
    line: Vec<u8>,
}

impl Lines {
    pub(super) fn open(path: &Arc<Path>, longest: usize) -> Result<Self, DataError> {
        Ok(Self { source: Unpacked::open(path)?, longest, number: 0, line: Vec::new() })
    }

    /// Returns the path of the file.
    pub(super) fn path(&self) -> &Arc<Path> {
        self.source.path()
    }

    /// Returns the number of the last line read.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the place of a line.
    pub(super) fn place(&self, line: u64) -> RecordPlace {
        RecordPlace { file: self.source.path().clone(), line }
    }

    /// Returns the next line, or `None` at the end of the file.
    pub(super) fn next(&mut self) -> Result<Option<&str>, DataError> {
        self.line.clear();
        let whole = match self.read_line() {
            Ok(Some(whole)) => whole,
            Ok(None) => return Ok(None),
            Err(error) => return Err(DataError::io(self.path())(error)),
        };
        self.number += 1;
        if !whole {
            // Frees the buffer, since this may be the only long line.
            self.line = Vec::new();
            return Err(self.malformed(format!("a line of at most {} bytes", self.longest), "a longer one"));
        }
        let line = self.line.strip_suffix(b"\r").unwrap_or(&self.line);
        match str::from_utf8(line) {
            Ok(line) => Ok(Some(line)),
            Err(error) => {
                let offset = error.valid_up_to();
                let byte = line.get(offset).copied().unwrap_or_default();
                Err(self.malformed(
                    "UTF-8 text",
                    format!("the byte {byte:#04x} at byte {} of the line", offset + 1),
                ))
            }
        }
    }

    /// Reads to the end of the line. Returns whether all of it was kept, or `None` at the end of the file.
    fn read_line(&mut self) -> io::Result<Option<bool>> {
        let mut read = false;
        let mut whole = true;
        loop {
            let available = self.source.fill_buf()?;
            if available.is_empty() {
                return Ok(read.then_some(whole));
            }
            read = true;
            let end = available.iter().position(|&byte| byte == b'\n');
            let part = &available[..end.unwrap_or(available.len())];
            whole &= part.len() <= self.longest.saturating_sub(self.line.len());
            if whole {
                self.line.extend_from_slice(part);
            }
            let length = part.len() + usize::from(end.is_some());
            self.source.consume(length);
            if end.is_some() {
                return Ok(Some(whole));
            }
        }
    }

    /// Creates the error for the last line read.
    fn malformed(&self, expected: impl Into<String>, found: impl Into<String>) -> DataError {
        DataError::record(self.place(self.number), None, expected, found)
    }
}

/// Returns whether a line has only ASCII white space.
///
/// Other white space, such as a no-break space, counts as text: it can be a word of a corpus.
pub(super) fn is_blank(line: &str) -> bool {
    line.bytes().all(|byte| byte.is_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

    use super::*;

    /// Returns the numbers of the lines in a file with this content, and their texts or errors.
    fn lines(bytes: &[u8], longest: usize) -> Vec<(u64, Result<String, String>)> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), bytes).unwrap();
        let mut lines = Lines::open(&file.path().into(), longest).unwrap();
        let mut read = Vec::new();
        while let Some(line) = lines.next().map(|line| line.map(str::to_owned)).transpose() {
            read.push((lines.number(), line.map_err(|error| error.to_string())));
        }
        read
    }

    #[test]
    fn line_endings() {
        let read = lines(b"\xef\xbb\xbfa\r\n\r\nb\rc\nd", 100);
        let expected = ["a", "", "b\rc", "d"];
        assert_eq!(read.len(), expected.len());
        for ((number, line), (index, text)) in read.into_iter().zip(expected.into_iter().enumerate()) {
            assert_eq!((number, line.unwrap().as_str()), (index as u64 + 1, text));
        }
    }

    #[test]
    fn reading_continues_after_a_malformed_line() {
        let long = "x".repeat(200_000);
        let read = lines(format!("12345\n123456\n{long}\r\nok\n{long}").as_bytes(), 5);
        assert_eq!(read[0].1.as_deref(), Ok("12345"));
        assert!(read[1].1.as_ref().unwrap_err().contains(":2: expected a line of at most 5 bytes"));
        assert!(read[2].1.is_err());
        assert_eq!(read[3], (4, Ok("ok".into())));
        assert!(read[4].1.is_err());
        assert_eq!(read.len(), 5);

        let read = lines(b"ab\xffc\nok\n", 100);
        let error = read[0].1.as_ref().unwrap_err();
        assert!(
            error.contains(":1: expected UTF-8 text, found the byte 0xff at byte 3 of the line"),
            "{error}"
        );
        assert_eq!(read[1], (2, Ok("ok".into())));
    }

    #[test]
    fn blank_lines() {
        assert!(is_blank("") && is_blank(" \t"));
        assert!(!is_blank("\u{a0}") && !is_blank("x"));
    }

    proptest! {
        #[test]
        fn lines_equal_those_of_the_standard_library(text in "[a-cé\r\n]{0,40}") {
            let read: Vec<_> = lines(text.as_bytes(), 100).into_iter().map(|(_, line)| line.unwrap()).collect();
            // The standard library keeps a trailing `\r` without `\n`.
            let text = if text.ends_with('\r') { text + "\n" } else { text };
            let expected: Vec<_> = text.lines().collect();
            prop_assert_eq!(read, expected);
        }
    }
}
