//! Lines that come while others are answered.

use std::io::{self, BufRead, Read};
use std::iter;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// The number of lines that are answered together.
pub(super) const TOGETHER: usize = 256;

/// The most bytes of a line: what comes without a line end must not fill the memory. Tokenizing takes some 200 bytes for
/// each of them.
const LONGEST: usize = 1 << 20;

/// The bytes of lines after which no more are answered together with them, and after which no more are read ahead.
const ENOUGH: usize = LONGEST;

/// A line, counted from 1.
pub(super) type Line = (u64, Result<String, NoLine>);

/// Why a line of standard input cannot be read.
#[derive(Debug)]
pub(super) enum NoLine {
    /// The line is malformed.
    Malformed {
        /// What a line must be.
        expected: String,
        /// What it is.
        found: &'static str,
    },
    /// The input cannot be read any further.
    Io(io::Error),
}

/// The lines of an input that may wait for answers, such as a terminal or a pipe.
pub(super) struct Incoming {
    lines: Receiver<Line>,
    ahead: Arc<Ahead>,
}

impl Incoming {
    /// Starts to read. The thread ends with the input, or when this value is dropped. Nothing waits for it: a read cannot
    /// be interrupted.
    ///
    /// # Errors
    ///
    /// The system starts no thread.
    pub fn of(source: Box<dyn BufRead + Send>) -> io::Result<Self> {
        let (sender, read) = sync_channel(TOGETHER);
        let ahead = Arc::new(Ahead::default());
        let of_reader = ahead.clone();
        let hand_on = move || {
            for line in lines(source) {
                of_reader.add(bytes_of(&line));
                if sender.send(line).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("standard input".into()).spawn(hand_on)?;
        Ok(Self { lines: read, ahead })
    }

    /// Waits for a line, and returns it with those that have come by then, at most `most`, and fewer if they are long.
    /// `None` at the end.
    pub fn next(&self, most: usize) -> Option<impl Iterator<Item = Line> + '_> {
        let mut bytes = 0;
        let mut taken = move |line: Line| {
            bytes += bytes_of(&line);
            self.ahead.remove(bytes_of(&line));
            (line, bytes < ENOUGH)
        };
        let (first, mut has_room) = taken(self.lines.recv().ok()?);
        let mut others = self.lines.try_iter().take(most.saturating_sub(1));
        let more = iter::from_fn(move || {
            if !has_room {
                return None;
            }
            let (line, more) = taken(others.next()?);
            has_room = more;
            Some(line)
        });
        Some(iter::once(first).chain(more))
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.ahead.close();
    }
}

/// Counts the bytes of lines that are read ahead. What is read faster than it is answered must not fill the memory.
#[derive(Default)]
struct Ahead {
    state: Mutex<Backlog>,
    changed: Condvar,
}

#[derive(Default)]
struct Backlog {
    bytes: usize,
    /// Whether nobody takes lines any more.
    is_closed: bool,
}

impl Ahead {
    /// Adds a line, once there is room for it.
    fn add(&self, bytes: usize) {
        let is_full =
            |state: &mut Backlog| state.bytes > 0 && state.bytes + bytes > ENOUGH && !state.is_closed;
        let state = self.changed.wait_while(self.locked(), is_full);
        state.unwrap_or_else(PoisonError::into_inner).bytes += bytes;
    }

    fn remove(&self, bytes: usize) {
        self.locked().bytes -= bytes;
        self.changed.notify_one();
    }

    fn close(&self) {
        self.locked().is_closed = true;
        self.changed.notify_one();
    }

    fn locked(&self) -> MutexGuard<'_, Backlog> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bytes_of((_, line): &Line) -> usize {
    line.as_ref().map_or(0, String::len)
}

/// Returns the lines of an input, without their ends. Lines after a malformed one follow; after another error, none do.
pub(super) fn lines(mut source: Box<dyn BufRead + Send>) -> impl Iterator<Item = Line> {
    let mut numbers = 1..;
    let mut is_over = false;
    iter::from_fn(move || {
        if is_over {
            return None;
        }
        let line = line(&mut *source)?;
        is_over = matches!(line, Err(NoLine::Io(_)));
        Some((numbers.next()?, line))
    })
}

/// Reads a line; `None` at the end.
fn line(source: &mut (dyn BufRead + Send)) -> Option<Result<String, NoLine>> {
    let mut line = Vec::new();
    // Enough to see that a line is too long: one byte more than it may have, and an end of two bytes.
    let read = Read::take(&mut *source, LONGEST as u64 + 3).read_until(b'\n', &mut line);
    match read {
        Ok(0) => return None,
        Ok(_) => {}
        Err(error) => return Some(Err(NoLine::Io(error))),
    }
    let is_ended = line.pop_if(|last| *last == b'\n').is_some();
    if is_ended {
        line.pop_if(|last| *last == b'\r');
    }
    if line.len() > LONGEST {
        if !is_ended && let Err(error) = source.skip_until(b'\n') {
            return Some(Err(NoLine::Io(error)));
        }
        let expected = format!("a line of at most {LONGEST} bytes; shorten it, as with `cut -c 1-100000`");
        return Some(Err(NoLine::Malformed { expected, found: "a longer one" }));
    }
    Some(String::from_utf8(line).map_err(|_| NoLine::Malformed {
        expected: "UTF-8 text, as `iconv -f LATIN1 -t UTF-8` writes it".into(),
        found: "other bytes",
    }))
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    fn read(bytes: Vec<u8>) -> Vec<(u64, Result<usize, String>)> {
        let source = Box::new(BufReader::new(io::Cursor::new(bytes)));
        let shown = |line: Result<String, NoLine>| match line {
            Ok(line) => Ok(line.len()),
            Err(NoLine::Malformed { expected, .. }) => Err(expected),
            Err(NoLine::Io(error)) => Err(error.to_string()),
        };
        lines(source).map(|(number, line)| (number, shown(line))).collect()
    }

    #[test]
    fn a_line_has_an_end_and_a_bound() {
        let found = read(b"ab\r\n\ncd".to_vec());
        assert_eq!(found, [(1, Ok(2)), (2, Ok(0)), (3, Ok(2))]);
        for end in ["\n", "\r\n", ""] {
            let text = |length: usize| ("x".repeat(length) + end).into_bytes();
            assert_eq!(read(text(LONGEST)), [(1, Ok(LONGEST))], "{end:?}");
            assert!(matches!(&read(text(LONGEST + 1))[..], [(1, Err(_))]), "{end:?}");
        }
        // What follows a line that cannot be read is read.
        let mut bytes = vec![b'x'; 20 << 20];
        bytes.extend(b"\nr\xe9sum\xe9\nsun");
        let found = read(bytes);
        assert!(matches!(&found[..], [(1, Err(_)), (2, Err(_)), (3, Ok(3))]), "{found:?}");
        assert!(found[0].1.as_ref().unwrap_err().contains("1048576 bytes"));
    }

    #[test]
    fn long_lines_are_answered_in_small_numbers() {
        let text = ("x".repeat(LONGEST - 1) + "\n").repeat(10);
        let incoming = Incoming::of(Box::new(io::Cursor::new(text))).unwrap();
        let mut all = 0;
        while let Some(lines) = incoming.next(TOGETHER) {
            let bytes: usize = lines.map(|line| bytes_of(&line)).inspect(|_| all += 1).sum();
            assert!(bytes < ENOUGH + LONGEST, "{bytes}");
        }
        assert_eq!(all, 10);
    }

    /// An input that tells how many bytes were read of it.
    struct Told(Arc<Mutex<usize>>);

    impl io::Read for Told {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            into.fill(b'x');
            let last = into.len() - 1;
            // A line has 64 KiB or less.
            into[last] = b'\n';
            *self.0.lock().unwrap() += into.len();
            Ok(into.len())
        }
    }

    /// An input that is faster than its answers waits, however many lines are still to come.
    #[test]
    fn what_is_read_ahead_is_bounded_in_bytes() {
        let read = Arc::new(Mutex::new(0));
        let source = BufReader::with_capacity(64 << 10, Told(read.clone()));
        let incoming = Incoming::of(Box::new(source)).unwrap();
        let (mut before, mut taken) = (0, 0);
        for _ in 0..3 {
            // Until no more is read.
            loop {
                thread::sleep(std::time::Duration::from_millis(100));
                let now = *read.lock().unwrap();
                if now == before && now > 0 {
                    break;
                }
                before = now;
            }
            // A buffer and a line come on top, and the ends of lines.
            assert!(before <= taken + ENOUGH + (256 << 10), "{before} {taken}");
            taken += incoming.next(TOGETHER).unwrap().map(|line| bytes_of(&line)).sum::<usize>();
        }
        // The thread that reads ends.
        drop(incoming);
        let mut ended = Arc::strong_count(&read);
        for _ in 0..100 {
            thread::sleep(std::time::Duration::from_millis(20));
            ended = Arc::strong_count(&read);
            if ended == 1 {
                break;
            }
        }
        assert_eq!(ended, 1);
    }
}
