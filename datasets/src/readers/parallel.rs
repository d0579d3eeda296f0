//! Reads parallel text: two files whose lines correspond.

use std::sync::Arc;

use super::{
    Files,
    lines::{LONGEST_RECORD, Lines, is_blank},
    records,
};
use crate::{DataError, Reader, Record, Records, Value, counted};

/// Reads pairs of lines, such as sentences and their translations, from pairs of files.
///
/// Each record has two fields, `source` and `target` by default. A pair with a blank side is malformed, unless blank
/// lines are kept: in aligned text, it often indicates a misalignment. If two files differ in their number of lines,
/// the end of the shorter one is an error.
///
/// # Example
///
/// ```
/// use firebrick_datasets::{ParallelReader, Reader};
///
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path();
/// std::fs::write(folder.join("train.en"), "Hello.\nThank you.\n")?;
/// std::fs::write(folder.join("train.fr"), "Bonjour.\nMerci.\n")?;
///
/// let reader = ParallelReader::new(folder.join("train.en"), folder.join("train.fr"))?.fields("en", "fr");
/// let pair = reader.open(0)?.nth(1).unwrap()?;
/// assert_eq!((pair.text("en")?, pair.text("fr")?), ("Thank you.", "Merci."));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct ParallelReader {
    source: Files,
    target: Files,
    names: [Arc<str>; 2],
    keep_blank: bool,
    longest: usize,
}

impl ParallelReader {
    /// Reads these files in pairs: the first of both, the second of both, and so on.
    ///
    /// # Errors
    ///
    /// [`ReadError::ReaderSetting`](crate::ReadError::ReaderSetting) if the numbers of files differ.
    pub fn new(source: impl Into<Files>, target: impl Into<Files>) -> Result<Self, DataError> {
        let (source, target) = (source.into(), target.into());
        let counts = (source.paths().len(), target.paths().len());
        if counts.0 != counts.1 {
            let expected = format!("{}, as many as for `source`", counted(counts.0, "file"));
            return Err(DataError::setting("target", expected, counts.1.to_string()));
        }
        let names = ["source".into(), "target".into()];
        Ok(Self { source, target, names, keep_blank: false, longest: LONGEST_RECORD })
    }

    /// Sets the names of the fields. Default: `source` and `target`.
    pub fn fields(self, source: &str, target: &str) -> Self {
        Self { names: [source.into(), target.into()], ..self }
    }

    /// Sets whether a pair with a blank side is a record, with an empty text. By default it is malformed.
    pub fn keep_blank(self, keep_blank: bool) -> Self {
        Self { keep_blank, ..self }
    }

    /// Sets the maximum number of bytes in a line; a longer one is malformed. Default: 64 MiB.
    pub fn longest(self, bytes: usize) -> Self {
        Self { longest: bytes, ..self }
    }
}

impl Reader for ParallelReader {
    fn parts(&self) -> usize {
        self.source.paths().len()
    }

    fn open(&self, part: usize) -> Result<Records, DataError> {
        let open = |files: &Files| Lines::open(files.part(part)?, self.longest);
        let mut pairs = Pairs {
            lines: [open(&self.source)?, open(&self.target)?],
            names: self.names.clone(),
            keep_blank: self.keep_blank,
        };
        Ok(records(move || pairs.next()))
    }
}

struct Pairs {
    lines: [Lines; 2],
    names: [Arc<str>; 2],
    keep_blank: bool,
}

impl Pairs {
    fn next(&mut self) -> Result<Option<Record>, DataError> {
        // Reads both lines before checking either, to keep the files in step.
        let [source, target] = self.lines.each_mut().map(|lines| {
            let line = lines.next();
            line.map(|line| line.map(str::to_owned))
        });
        match (source, target) {
            (Err(error), _) if !error.is_about_a_record() => Err(error),
            (_, Err(error)) if !error.is_about_a_record() => Err(error),
            (Ok(None), Ok(None)) => Ok(None),
            (Ok(None), _) => Err(self.uneven(0)),
            (_, Ok(None)) => Err(self.uneven(1)),
            (Err(error), _) | (_, Err(error)) => Err(error),
            (Ok(Some(source)), Ok(Some(target))) => self.pair([source, target]).map(Some),
        }
    }

    fn pair(&self, mut texts: [String; 2]) -> Result<Record, DataError> {
        for (index, text) in texts.iter_mut().enumerate().filter(|(_, text)| is_blank(text)) {
            if !self.keep_blank {
                let lines = &self.lines[index];
                let place = lines.place(lines.number());
                return Err(DataError::record(place, Some(&self.names[index]), "a text", "a blank line"));
            }
            text.clear();
        }
        let lines = &self.lines[0];
        let fields = self.names.iter().cloned().zip(texts.map(Value::Text)).collect();
        Ok(Record::new(lines.place(lines.number()), fields))
    }

    /// Creates the error for files of different lengths. Counts the remaining lines of the longer one.
    fn uneven(&mut self, ended: usize) -> DataError {
        let [source, target] = &mut self.lines;
        let (short, long) = if ended == 0 { (source, target) } else { (target, source) };
        let lines = short.number();
        loop {
            match long.next() {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) if error.is_about_a_record() => {}
                Err(error) => return error,
            }
        }
        let expected =
            format!("{}, as many as in `{}`", counted(long.number(), "line"), long.path().display());
        DataError::file(short.path(), expected, lines.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn read(source: &[u8], target: &[u8], keep_blank: bool) -> Vec<Result<(u64, String, String), String>> {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| folder.path().join(name));
        fs::write(&paths[0], source).unwrap();
        fs::write(&paths[1], target).unwrap();
        let [source, target] = paths;
        let reader = ParallelReader::new(source, target).unwrap().keep_blank(keep_blank);
        let of = |record: &Record, name| record.text(name).unwrap().to_owned();
        let brief = |record: Record| (record.place().line, of(&record, "source"), of(&record, "target"));
        let records = reader.open(0).unwrap();
        records.map(|record| record.map(brief).map_err(|error| error.to_string())).collect()
    }

    #[test]
    fn blank_sides() {
        let kept = read(b"a\n\nc", b"x\ny\n \n", true);
        let of = |line, source: &str, target: &str| Ok((line, source.to_owned(), target.to_owned()));
        assert_eq!(kept, [of(1, "a", "x"), of(2, "", "y"), of(3, "c", "")]);

        let refused = read(b"a\n\nc\nd", b"x\ny\n \nz", false);
        assert!(refused[1].as_ref().unwrap_err().contains("a:2, field `source`: expected a text"));
        assert!(refused[2].as_ref().unwrap_err().contains("b:3, field `target`"), "{refused:?}");
        assert_eq!(refused[3], of(4, "d", "z"));
    }

    #[test]
    fn a_malformed_line_keeps_both_files_aligned() {
        let found = read(b"\xff\nb\n", b"x\ny\n", false);
        assert!(found[0].is_err());
        assert_eq!(found[1], Ok((2, "b".into(), "y".into())));
    }

    #[test]
    fn damage_is_reported_before_uneven_lengths() {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut packed, b"aaa\n").unwrap();
        // The second gzip member is truncated.
        let damaged = [packed.finish().unwrap(), b"\x1f\x8b".to_vec()].concat();
        for found in [read(&damaged, b"x\n", false), read(b"x\n", &damaged, false)] {
            assert_eq!(found.len(), 2);
            assert!(found[1].as_ref().unwrap_err().contains("ends too early, after 4 bytes"), "{found:?}");
        }
    }

    #[test]
    fn differing_numbers_of_lines() {
        for (source, target, says) in [
            ("a\nb\nc\n", "x\n", "b`: expected 3 lines, as many as in `"),
            ("a", "x\ny", "a`: expected 2 lines, as many as in `"),
            ("", "x", "found 0"),
        ] {
            let found = read(source.as_bytes(), target.as_bytes(), false);
            let error = found.last().unwrap().as_ref().unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn differing_numbers_of_files() {
        let error = ParallelReader::new(vec!["a".into(), "b".into()], vec!["c".into()]).unwrap_err();
        assert!(error.to_string().contains("expected 2 files"), "{error}");
    }
}
