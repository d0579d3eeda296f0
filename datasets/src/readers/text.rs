//! Reads plain text: a record for each line, paragraph or document.

use std::{io::Read, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    Files,
    lines::{LONGEST_RECORD, Lines, is_blank},
    records,
    unpacked::Unpacked,
};
use crate::{DataError, Reader, Record, RecordPlace, Records, Value};

/// The part of a text that makes a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum TextUnit {
    /// A line, the default.
    #[default]
    Line,
    /// Consecutive non-blank lines, joined by newlines.
    Paragraph,
    /// A whole file.
    Document,
}

/// Reads text. Each record has one field, `text`.
///
/// Files may be compressed with gzip or zstd. Lines end with `\n` or `\r\n`; a line is blank if it has only spaces and
/// tabs. A document with nothing but blank lines yields no record.
///
/// # Example
///
/// ```
/// use firebrick_datasets::{Reader, TextReader, TextUnit};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("poem.txt");
/// std::fs::write(&path, "To be,\nor not to be,\n\n\nthat is\n")?;
/// let texts = |reader: TextReader| -> Result<Vec<String>, firebrick_datasets::DataError> {
///     reader.open(0)?.map(|record| Ok(record?.text("text")?.to_owned())).collect()
/// };
///
/// let lines = TextReader::new(path.clone());
/// assert_eq!(texts(lines.clone())?, ["To be,", "or not to be,", "that is"]);
/// assert_eq!(texts(lines.keep_blank(true))?.len(), 5);
///
/// let paragraphs = TextReader::new(path).unit(TextUnit::Paragraph);
/// assert_eq!(texts(paragraphs)?, ["To be,\nor not to be,", "that is"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct TextReader {
    files: Files,
    unit: TextUnit,
    keep_blank: bool,
    longest: usize,
}

impl TextReader {
    /// Reads the lines of these files.
    pub fn new(files: impl Into<Files>) -> Self {
        Self { files: files.into(), unit: TextUnit::Line, keep_blank: false, longest: LONGEST_RECORD }
    }

    /// Sets the part of a text that makes a record. Default: a line.
    pub fn unit(self, unit: TextUnit) -> Self {
        Self { unit, ..self }
    }

    /// Sets whether a blank line is a record too, if records are lines. Default: no.
    pub fn keep_blank(self, keep_blank: bool) -> Self {
        Self { keep_blank, ..self }
    }

    /// Sets the maximum number of bytes in a record; a longer one is malformed. Default: 64 MiB.
    pub fn longest(self, bytes: usize) -> Self {
        Self { longest: bytes, ..self }
    }
}

impl Reader for TextReader {
    fn parts(&self) -> usize {
        self.files.paths().len()
    }

    fn open(&self, part: usize) -> Result<Records, DataError> {
        let path = self.files.part(part)?;
        let (longest, keep_blank) = (self.longest, self.keep_blank);
        let name = Arc::from("text");
        if self.unit == TextUnit::Document {
            let mut source = Some(Unpacked::open(path)?);
            return Ok(records(move || match source.take() {
                Some(source) => document(source, longest, &name),
                None => Ok(None),
            }));
        }
        let mut lines = Lines::open(path, longest)?;
        Ok(if self.unit == TextUnit::Line {
            records(move || line(&mut lines, keep_blank, &name))
        } else {
            records(move || paragraph(&mut lines, longest, &name))
        })
    }
}

fn record(place: RecordPlace, name: &Arc<str>, text: String) -> Record {
    Record::new(place, vec![(name.clone(), Value::Text(text))])
}

fn too_long(place: RecordPlace, longest: usize, unit: &str) -> DataError {
    let expected = format!("a {unit} of at most {longest} bytes");
    DataError::record(place, None, expected, "a longer one")
}

fn line(lines: &mut Lines, keep_blank: bool, name: &Arc<str>) -> Result<Option<Record>, DataError> {
    while let Some(line) = lines.next()? {
        if keep_blank || !is_blank(line) {
            let line = line.to_owned();
            return Ok(Some(record(lines.place(lines.number()), name, line)));
        }
    }
    Ok(None)
}

fn paragraph(lines: &mut Lines, longest: usize, name: &Arc<str>) -> Result<Option<Record>, DataError> {
    let mut text = String::new();
    let mut first = None;
    // A malformed line makes its whole paragraph malformed. The rest of the paragraph is still read.
    let mut malformed = None;
    loop {
        match lines.next() {
            Ok(Some(line)) if !is_blank(line) => {
                if malformed.is_none() && text.len() + line.len() < longest {
                    if first.is_some() {
                        text.push('\n');
                    }
                    text.push_str(line);
                } else if malformed.is_none() {
                    text = String::new();
                    let place = lines.place(first.unwrap_or(lines.number()));
                    malformed = Some(too_long(place, longest, "paragraph"));
                }
                first = first.or(Some(lines.number()));
            }
            Ok(Some(_)) if first.is_none() => {}
            Ok(_) => break,
            Err(error) if error.is_about_a_record() => {
                malformed = malformed.or(Some(error));
                text = String::new();
                first = first.or(Some(lines.number()));
            }
            Err(error) => return Err(error),
        }
    }
    match (malformed, first) {
        (Some(error), _) => Err(error),
        (None, Some(first)) => Ok(Some(record(lines.place(first), name, text))),
        (None, None) => Ok(None),
    }
}

fn document(source: Unpacked, longest: usize, name: &Arc<str>) -> Result<Option<Record>, DataError> {
    let place = RecordPlace { file: source.path().clone(), line: 1 };
    let mut source = source.take(longest as u64 + 1);
    let mut bytes = Vec::new();
    source.read_to_end(&mut bytes).map_err(DataError::io(&place.file))?;
    if bytes.len() > longest {
        return Err(too_long(place, longest, "document"));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let found =
            format!("byte {}, which does not start a valid character", error.utf8_error().valid_up_to() + 1);
        DataError::record(place.clone(), None, "UTF-8 text", found)
    })?;
    Ok((!is_blank(&text)).then(|| record(place, name, text)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Returns the line and text of each record, or its error.
    fn read(bytes: &[u8], options: impl Fn(TextReader) -> TextReader) -> Vec<Result<(u64, String), String>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), bytes).unwrap();
        let records = options(TextReader::new(file.path())).open(0).unwrap();
        let brief = |record: Record| (record.place().line, record.text("text").unwrap().to_owned());
        records.map(|record| record.map(brief).map_err(|error| error.to_string())).collect()
    }

    #[test]
    fn lines() {
        let of = |line, text: &str| Ok((line, text.to_owned()));
        assert_eq!(read(b"a\n\n \t\n\xc2\xa0\r\nb", |r| r), [of(1, "a"), of(4, "\u{a0}"), of(5, "b")]);
        assert_eq!(read(b"a\n\n", |r| r.keep_blank(true)), [of(1, "a"), of(2, "")]);
        assert_eq!(read(b"", |r| r), []);
    }

    #[test]
    fn paragraphs() {
        let of = |line, text: &str| Ok((line, text.to_owned()));
        let unit = |reader: TextReader| reader.unit(TextUnit::Paragraph).longest(10);
        assert_eq!(read(b"\n\na\n b \n \nc\n\n", unit), [of(3, "a\n b "), of(6, "c")]);

        let found = read(b"a\n\xff\nb\n\n12345\n67890\nxxxxx\n\n\nok", unit);
        assert!(found[0].as_ref().unwrap_err().contains(":2: expected UTF-8"), "{found:?}");
        assert!(
            found[1].as_ref().unwrap_err().contains(":5: expected a paragraph of at most 10"),
            "{found:?}"
        );
        assert_eq!(found[2..], [of(10, "ok")]);
    }

    #[test]
    fn documents() {
        let unit = |reader: TextReader| reader.unit(TextUnit::Document).longest(4);
        assert_eq!(read(b"a\n\nb", unit), [Ok((1, "a\n\nb".into()))]);
        assert_eq!(read(b"\n \n", unit), []);
        for bytes in [b"12345".as_slice(), b"\xff"] {
            let found = read(bytes, unit);
            assert!(found.len() == 1 && found[0].is_err(), "{found:?}");
        }
    }

    #[test]
    fn no_such_part() {
        let error = TextReader::new(Vec::new()).open(0).err().unwrap();
        assert!(matches!(error, DataError::Read(crate::ReadError::NoPart { part: 0, parts: 0 })));
    }
}
