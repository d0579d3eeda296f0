//! Reads a log that another process writes, as it grows.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

use firebrick::observe::log::LogLine;

/// The number of bytes to read at once.
const CHUNK: usize = 1 << 16;
/// Longer than any line of a run. Longer lines are skipped without being buffered.
const LONGEST: usize = 1 << 20;
/// The number of bytes before the read position that identify the log.
const REMEMBERED: usize = 256;

/// What a look at the log finds, in order.
#[derive(Debug, PartialEq)]
pub(crate) enum LogEvent {
    /// The log was replaced or cut: discard everything read so far.
    Restarted,
    Line(LogLine),
    /// A line that is not a log line, or of an unknown kind.
    PassedOver,
}

/// Reads a log on from the last position. A run that resumes from a checkpoint cuts its log, and a new run replaces
/// it. Both are detected by the length and the last bytes read, and the log is then read again from the start.
#[derive(Debug)]
pub(crate) struct Follower {
    path: PathBuf,
    /// The position in the log.
    read: u64,
    /// The last bytes that were read.
    remembered: Vec<u8>,
    /// The start of a line that is not complete yet.
    begun: Vec<u8>,
    /// Whether that line is too long to be a log line.
    too_long: bool,
}

impl Follower {
    /// Follows a log that need not exist yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, read: 0, remembered: Vec::new(), begun: Vec::new(), too_long: false }
    }

    /// Passes everything new to `take`.
    pub fn look(&mut self, mut take: impl FnMut(LogEvent)) -> io::Result<()> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.restart(&mut take);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let length = file.metadata()?.len();
        if !self.goes_on(&mut file, length)? {
            self.restart(&mut take);
        }
        file.seek(SeekFrom::Start(self.read))?;
        let mut new = file.take(length - self.read);
        let mut chunk = vec![0; CHUNK];
        loop {
            match new.read(&mut chunk)? {
                0 => return Ok(()),
                count => self.add(chunk.get(..count).unwrap_or_default(), &mut take),
            }
        }
    }

    fn restart(&mut self, take: &mut impl FnMut(LogEvent)) {
        if self.read > 0 {
            *self = Self::new(std::mem::take(&mut self.path));
            take(LogEvent::Restarted);
        }
    }

    /// Whether the file still begins with the bytes that were read.
    fn goes_on(&self, file: &mut File, length: u64) -> io::Result<bool> {
        if length < self.read {
            return Ok(false);
        }
        file.seek(SeekFrom::Start(self.read - self.remembered.len() as u64))?;
        let mut there = vec![0; self.remembered.len()];
        match file.read_exact(&mut there) {
            Ok(()) => Ok(there == self.remembered),
            // The file was just cut.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn add(&mut self, bytes: &[u8], take: &mut impl FnMut(LogEvent)) {
        self.read += bytes.len() as u64;
        self.remembered.extend(bytes.iter().skip(bytes.len().saturating_sub(REMEMBERED)));
        let surplus = self.remembered.len().saturating_sub(REMEMBERED);
        self.remembered.drain(..surplus);
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (part, ended) = match part.strip_suffix(b"\n") {
                Some(part) => (part, true),
                None => (part, false),
            };
            self.too_long |= self.begun.len() + part.len() > LONGEST;
            if self.too_long {
                self.begun.clear()
            } else {
                self.begun.extend(part)
            }
            if ended {
                match LogLine::parse(&self.begun) {
                    Some(line) => take(LogEvent::Line(line)),
                    None if self.begun.is_empty() && !self.too_long => {}
                    None => take(LogEvent::PassedOver),
                }
                self.begun.clear();
                self.too_long = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;
    use std::path::Path;

    use super::*;

    fn line(step: u64) -> String {
        format!("{{\"kind\":\"train\",\"step\":{step},\"loss\":1.0}}\n")
    }

    fn append(path: &Path, text: &str) {
        let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    /// The steps of new lines; 0 stands for a restart, and -1 for a skipped line.
    fn look(follower: &mut Follower) -> Vec<i64> {
        let mut seen = Vec::new();
        let take = |found| {
            seen.push(match found {
                LogEvent::Restarted => 0,
                LogEvent::Line(line) => line.step() as i64,
                LogEvent::PassedOver => -1,
            })
        };
        follower.look(take).unwrap();
        seen
    }

    #[test]
    fn lines_are_seen_once_and_when_they_are_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut follower = Follower::new(path.clone());
        assert!(look(&mut follower).is_empty());
        append(&path, &(line(1) + &line(2)));
        assert_eq!(look(&mut follower), [1, 2]);
        assert!(look(&mut follower).is_empty());
        let third = line(3);
        append(&path, &third[..10]);
        assert!(look(&mut follower).is_empty());
        append(&path, &third[10..]);
        append(&path, "\nnothing\n");
        assert_eq!(look(&mut follower), [3, -1]);
    }

    #[test]
    fn a_log_that_is_cut_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut follower = Follower::new(path.clone());
        append(&path, &(line(1) + &line(2) + &line(3)));
        assert_eq!(look(&mut follower), [1, 2, 3]);
        fs::write(&path, line(1)).unwrap();
        assert_eq!(look(&mut follower), [0, 1]);
        // Cut, and longer than before by the next look.
        fs::write(&path, line(7) + &line(8) + &line(9)).unwrap();
        assert_eq!(look(&mut follower), [0, 7, 8, 9]);
        fs::remove_file(&path).unwrap();
        assert_eq!(look(&mut follower), [0]);
        assert!(look(&mut follower).is_empty());
    }

    #[test]
    fn lines_of_any_length_are_read_in_bounded_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        append(&path, &("x".repeat(3 * LONGEST) + "\n" + &line(2)));
        let mut follower = Follower::new(path);
        assert_eq!(look(&mut follower), [-1, 2]);
        assert!(follower.begun.capacity() <= 2 * LONGEST);
    }
}
