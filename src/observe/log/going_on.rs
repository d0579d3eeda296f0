//! The log of a resumed run, cut to the lines up to its checkpoint.
//!
//! A checkpoint holds a mark of its log: the length and the checksum of its bytes. The log is cut there, so each step
//! has exactly one line. When you resume from an older checkpoint, the lines that are cut may belong to newer
//! checkpoints that still exist. The whole log is then kept beside the new one, as `metrics-1.jsonl` or the next free
//! number, until no checkpoint needs it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::{LOG, Mark};
use crate::files::staging::replace_or;
use crate::observe::log::{LogLine, for_each_line};
use crate::observe::numbers::StepNumbers;

/// The history of the run according to the kept lines.
#[derive(Debug, Default)]
pub(crate) struct Past {
    pub tokens: usize,
    pub step_seconds: Vec<f64>,
    pub peak_bytes: usize,
    pub activation_bytes: usize,
    /// The last step.
    pub last: Option<StepNumbers>,
    /// Whether steps are missing, as in a log that was edited by hand.
    pub has_holes: bool,
    /// The first step from which TensorBoard's files are invalid, and the kept lines from there on, to be written
    /// again.
    pub board_from: u64,
    pub board_lines: Vec<LogLine>,
}

/// A log that has been cut.
pub(super) struct GoingOn {
    pub file: File,
    pub bytes: u64,
    pub sum: blake3::Hasher,
    pub past: Past,
}

/// Cuts the log in a folder at a mark. `others` are the marks of the run's other checkpoints.
pub(super) fn go_on(folder: &Path, mark: &Mark, others: &[Mark]) -> io::Result<GoingOn> {
    let path = folder.join(LOG);
    let aside = logs_aside(folder)?;
    let is_in = |log: &Path| Ok::<_, io::Error>(begins_with(log, &[*mark])?[0]);
    // Whether the cut removes an evaluation at the checkpoint's own step, which will be repeated.
    let mut evaluated_again = false;
    let mut is_other = true;
    if is_in(&path)? {
        let needs_more = |(other, is_there): (&Mark, bool)| is_there && other.bytes > mark.bytes;
        if others.iter().zip(begins_with(&path, others)?).any(needs_more) {
            replace(&folder.join(free_name(&aside)), |copy| fs::copy(&path, copy).map(drop))?;
        }
        let length = length_with_save(&path, mark)?;
        let mut cut = File::open(&path)?;
        cut.seek(SeekFrom::Start(length))?;
        for_each_line(BufReader::new(&cut), |line, _| {
            let line = line.and_then(LogLine::parse);
            evaluated_again |= matches!(line, Some(LogLine::Valid(line)) if line.step == mark.updates);
        })?;
        // If there is nothing to cut, as after a complete run, leave the log's modification time unchanged.
        if cut.metadata()?.len() > length {
            OpenOptions::new().write(true).open(&path)?.set_len(length)?;
        }
        is_other = false;
    } else if let Some(whole) = aside.iter().find_map(|log| is_in(log).ok()?.then_some(log)) {
        if begins_with(&path, others)?.contains(&true) {
            fs::rename(&path, folder.join(free_name(&aside)))?;
        }
        replace(&path, |new| {
            let mut kept = File::open(whole)?.take(length_with_save(whole, mark)?);
            io::copy(&mut kept, &mut File::create(new)?).map(drop)
        })?;
    } else {
        keep_lines(&path, mark.updates)?;
    }
    for log in logs_aside(folder)? {
        if !begins_with(&log, others)?.contains(&true) {
            fs::remove_file(log)?;
        }
    }
    // The board of another log, or with an evaluation that will be repeated, does not match the kept lines.
    let board_from = match (is_other, evaluated_again) {
        (true, _) => 0,
        (false, true) => mark.updates,
        (false, false) => mark.updates.saturating_add(1),
    };
    read(&path, mark.updates, board_from)
}

/// The length up to a mark, including the lines about the save itself that follow: the mark was taken when the save
/// began.
fn length_with_save(log: &Path, mark: &Mark) -> io::Result<u64> {
    let mut file = File::open(log)?;
    file.seek(SeekFrom::Start(mark.bytes))?;
    let (mut length, mut is_of_save) = (mark.bytes, true);
    for_each_line(BufReader::new(file), |line, ended| {
        let text = line.unwrap_or_default();
        is_of_save &= ended
            && matches!(LogLine::parse(text), Some(LogLine::Checkpoint(save)) if save.step <= mark.updates);
        length += if is_of_save { text.len() as u64 + 1 } else { 0 };
    })?;
    Ok(length)
}

/// Reads the kept lines.
fn read(path: &Path, updates: u64, board_from: u64) -> io::Result<GoingOn> {
    let mut file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
    let (mut sum, mut past) = (blake3::Hasher::new(), Past { board_from, ..Past::default() });
    let bytes = sum.update_reader(&mut file)?.count();
    file.seek(SeekFrom::Start(0))?;
    let (mut first, mut made) = (None, 0);
    for_each_line(BufReader::new(&file), |line, _| {
        let Some(line) = line.and_then(LogLine::parse) else { return };
        if let LogLine::Train(step) = &line {
            first.get_or_insert(step.step);
            made += u64::from(step.skipped.is_none());
            past.add(step);
        }
        if line.step() >= board_from {
            past.board_lines.push(line);
        }
    })?;
    // The log of a run that began in another folder starts at a later step.
    past.has_holes = first.map_or(updates > 0, |first| made + first.max(1) != updates + 1);
    Ok(GoingOn { file, bytes, sum, past })
}

impl Past {
    fn add(&mut self, line: &StepNumbers) {
        self.tokens += line.tokens;
        self.step_seconds.push(line.seconds);
        self.peak_bytes = self.peak_bytes.max(line.peak_bytes);
        self.activation_bytes = self.activation_bytes.max(line.activation_bytes);
        self.last = Some(line.clone());
    }
}

/// Whether each mark belongs to a log, that is, whether the log starts with the marked bytes.
fn begins_with(log: &Path, marks: &[Mark]) -> io::Result<Vec<bool>> {
    let mut found = vec![false; marks.len()];
    let mut file = match File::open(log) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        file => BufReader::new(file?),
    };
    let mut order: Vec<_> = (0..marks.len()).collect();
    order.sort_by_key(|at| marks[*at].bytes);
    let (mut sum, mut read) = (blake3::Hasher::new(), 0);
    for at in order {
        let Mark { bytes, sum: Some(expected), .. } = marks[at] else { continue };
        let mut until = (&mut file).take(bytes - read);
        sum.update_reader(&mut until)?;
        if until.limit() > 0 {
            break;
        }
        read = bytes;
        found[at] = expected == (&sum).into();
    }
    Ok(found)
}

/// Keeps the lines up to `updates` if no log has the checkpoint's bytes: an older version wrote the checkpoint, the
/// log was changed, or a power failure lost part of it.
fn keep_lines(path: &Path, updates: u64) -> io::Result<()> {
    let log = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        log => BufReader::new(log?),
    };
    replace(path, |new| {
        let mut kept = BufWriter::new(File::create(new)?);
        let (mut last, mut written) = (None, Ok(()));
        for_each_line(log, |line, ended| {
            let Some((text, line)) = line.and_then(|text| Some((text, LogLine::parse(text)?))) else {
                return;
            };
            // Older versions append repeated steps after later ones.
            let is_next = match &line {
                LogLine::Train(line) if line.skipped.is_none() => last.is_none_or(|last| line.step > last),
                other => last.is_none_or(|last| other.step() >= last),
            };
            if ended && is_next && line.step() <= updates && written.is_ok() {
                if let LogLine::Train(line) = &line {
                    last = Some(line.step);
                }
                written = kept.write_all(text).and_then(|()| kept.write_all(b"\n"));
            }
        })?;
        written.and_then(|()| kept.flush())
    })
}

/// Writes a file beside `path` with `write`, and moves it there.
fn replace(path: &Path, write: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    replace_or(path, write, |error| error)
}

/// The logs that were put aside, by number.
fn logs_aside(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        found.extend(number(&path).map(|number| (number, path)));
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

fn number(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix("metrics-")?.strip_suffix(".jsonl")?.parse().ok()
}

fn free_name(aside: &[PathBuf]) -> String {
    let last = aside.iter().filter_map(|path| number(path)).max().unwrap_or(0);
    format!("metrics-{}.jsonl", last + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a log whose lines hold the step and a branch number, and returns the mark after each step.
    fn trained(
        log: &Path,
        mark: Option<Mark>,
        steps: std::ops::RangeInclusive<u64>,
        branch: u64,
    ) -> Vec<Mark> {
        let mut file = OpenOptions::new().append(true).create(true).open(log).unwrap();
        let mut marks: Vec<_> = mark.into_iter().collect();
        for step in steps {
            writeln!(file, "{{\"kind\":\"train\",\"step\":{step},\"tokens\":{branch}}}").unwrap();
            marks.push(mark_of(log, step));
        }
        marks
    }

    fn mark_of(log: &Path, updates: u64) -> Mark {
        let bytes = fs::read(log).unwrap();
        let mut sum = blake3::Hasher::new();
        sum.update(&bytes);
        Mark { bytes: bytes.len() as u64, sum: Some((&sum).into()), updates }
    }

    /// The step and branch of each line.
    fn lines(log: &Path) -> Vec<(u64, u64)> {
        let mut lines = Vec::new();
        for_each_line(BufReader::new(File::open(log).unwrap()), |line, _| {
            match LogLine::parse(line.unwrap()) {
                Some(LogLine::Train(line)) => lines.push((line.step, line.tokens as u64)),
                other => panic!("{other:?}"),
            }
        })
        .unwrap();
        lines
    }

    #[test]
    fn each_checkpoint_gets_its_own_lines_however_often_the_run_went_back() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let log = folder.join(LOG);
        let aside = |number| folder.join(format!("metrics-{number}.jsonl"));
        let first = trained(&log, None, 1..=6, 1);
        // A kill cut off a line after the last checkpoint, that of step 4.
        fs::write(&log, fs::read_to_string(&log).unwrap() + "{\"kind\":\"tr").unwrap();
        let goes_on = go_on(folder, &first[3], &first[..4]).unwrap();
        assert_eq!((goes_on.past.board_from, goes_on.past.board_lines.len()), (5, 0));
        assert_eq!((goes_on.past.tokens, goes_on.past.has_holes), (4, false));
        assert!(!aside(1).exists(), "no checkpoint needs what came after");
        trained(&log, None, 5..=6, 1);
        // Back to step 2, with checkpoints of steps 4 and 6.
        go_on(folder, &first[1], &[first[1], first[3], first[5]]).unwrap();
        assert_eq!(lines(&aside(1)), [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1)]);
        let second = trained(&log, Some(first[1]), 3..=5, 2);
        assert_eq!(lines(&log), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2)]);
        // Continue from step 4 of the first branch, while a checkpoint of the second remains.
        let goes_on = go_on(folder, &first[3], &[first[3], first[5], second[3]]).unwrap();
        assert_eq!(lines(&log), [(1, 1), (2, 1), (3, 1), (4, 1)]);
        assert_eq!(
            (goes_on.past.board_from, goes_on.past.board_lines.len()),
            (0, 4),
            "the board is written anew"
        );
        go_on(folder, &second[3], &[second[3]]).unwrap();
        assert_eq!(lines(&log), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2)]);
        assert!(!aside(1).exists(), "no checkpoint needs it any more");
    }

    #[test]
    fn a_log_that_no_mark_is_of_keeps_each_step_once() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join(LOG);
        trained(&log, None, 1..=5, 1);
        trained(&log, None, 3..=6, 2);
        let mark = Mark { bytes: 9999, sum: None, updates: 5 };
        let goes_on = go_on(folder.path(), &mark, &[mark]).unwrap();
        assert_eq!(lines(&log), [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]);
        assert!(!goes_on.past.has_holes);
        let mark = Mark { updates: 7, ..mark };
        assert!(go_on(folder.path(), &mark, &[mark]).unwrap().past.has_holes);
    }

    #[test]
    fn an_evaluation_that_is_made_again_takes_the_place_of_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join(LOG);
        let marks = trained(&log, None, 1..=2, 1);
        let text = fs::read_to_string(&log).unwrap() + "{\"kind\":\"valid\",\"step\":2,\"loss\":1.0}\n";
        fs::write(&log, text).unwrap();
        let goes_on = go_on(folder.path(), &marks[1], &marks).unwrap();
        assert_eq!((goes_on.past.board_from, goes_on.past.board_lines.len()), (2, 1));
    }
}
