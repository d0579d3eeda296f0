//! Reads JSON lines: a JSON object in each line.

use std::sync::Arc;

use super::{
    Files, json,
    lines::{LONGEST_RECORD, Lines, is_blank},
    records,
};
use crate::{DataError, Reader, Record, RecordPlace, Records, Value};

/// Reads JSON lines (<https://jsonlines.org>) from files, compressed or not. Blank lines are skipped.
///
/// The members of an object are the fields. An object becomes a [`Map`](Value::Map), an array a [`List`](Value::List).
/// These lines are malformed:
///
/// - anything other than a JSON object
/// - an object with a duplicate name
/// - a whole number below -2^63 or from 2^63
/// - values nested more than 127 deep
///
/// # Example
///
/// ```
/// use firebrick_datasets::{JsonlReader, Reader};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("train.jsonl");
/// std::fs::write(&path, r#"{"id": 7, "translation": {"en": "Hello.", "fr": "Bonjour."}}"#)?;
///
/// let record = JsonlReader::new(path).open(0)?.next().unwrap()?;
/// assert_eq!(record.text("translation.fr")?, "Bonjour.");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct JsonlReader {
    files: Files,
    longest: usize,
}

impl JsonlReader {
    /// Reads these files.
    pub fn new(files: impl Into<Files>) -> Self {
        Self { files: files.into(), longest: LONGEST_RECORD }
    }

    /// Parses a line that was read elsewhere, at this place.
    ///
    /// ```
    /// use std::path::Path;
    ///
    /// use firebrick_datasets::{JsonlReader, RecordPlace};
    ///
    /// let place = RecordPlace { file: Path::new("standard input").into(), line: 1 };
    /// let record = JsonlReader::record(r#"{"text": "hello"}"#, place)?;
    /// assert_eq!(record.text("text")?, "hello");
    /// # Ok::<(), firebrick_datasets::DataError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ReadError::Record`](crate::ReadError::Record) if it is not a JSON object.
    pub fn record(line: &str, place: RecordPlace) -> Result<Record, DataError> {
        let members = members(json::object(line), &place)?;
        Ok(Record::new(place, members.into_iter().map(|(name, value)| (name.into(), value)).collect()))
    }

    /// Sets the maximum number of bytes in a line; a longer one is malformed. Default: 64 MiB.
    pub fn longest(self, bytes: usize) -> Self {
        Self { longest: bytes, ..self }
    }
}

impl Reader for JsonlReader {
    fn parts(&self) -> usize {
        self.files.paths().len()
    }

    fn open(&self, part: usize) -> Result<Records, DataError> {
        let lines = Lines::open(self.files.part(part)?, self.longest)?;
        let mut objects = Objects { lines, names: Vec::new(), started: false };
        Ok(records(move || objects.next()))
    }
}

/// Returns the members of an object, or the error of the record at this place.
fn members(
    object: Result<Vec<(String, Value)>, json::Fault>,
    place: &RecordPlace,
) -> Result<Vec<(String, Value)>, DataError> {
    object.map_err(|fault| {
        let found = format!("at column {}: {}", fault.column, fault.reason);
        DataError::record(place.clone(), None, "a JSON object", found)
    })
}

struct Objects {
    lines: Lines,
    /// The names of the last record. The next record usually has the same ones and can share them.
    names: Vec<Arc<str>>,
    /// Whether a non-blank line was read.
    started: bool,
}

impl Objects {
    fn next(&mut self) -> Result<Option<Record>, DataError> {
        while let Some(line) = self.lines.next()? {
            if is_blank(line) {
                continue;
            }
            if !self.started && line.trim_start().starts_with('[') {
                let found = "an array; write each of its objects on a line of its own, as `jq -c '.[]'` does";
                return Err(DataError::file(self.lines.path(), "one JSON object on each line", found));
            }
            self.started = true;
            let members = json::object(line);
            let place = self.lines.place(self.lines.number());
            let members = self::members(members, &place)?;
            return Ok(Some(Record::new(place, self.named(members))));
        }
        Ok(None)
    }

    fn named(&mut self, members: Vec<(String, Value)>) -> Vec<(Arc<str>, Value)> {
        let mut last = std::mem::take(&mut self.names).into_iter();
        let shared = |(name, value): (String, Value)| match last.next() {
            Some(last) if *last == *name => (last, value),
            _ => (name.into(), value),
        };
        let fields: Vec<_> = members.into_iter().map(shared).collect();
        self.names = fields.iter().map(|(name, _)| name.clone()).collect();
        fields
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn read(text: &str) -> Vec<Result<Record, String>> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let records = JsonlReader::new(file.path()).open(0).unwrap();
        records.map(|record| record.map_err(|error| error.to_string())).collect()
    }

    #[test]
    fn lines_and_names() {
        let found = read("{\"a\":1,\"b\":2}\n\n \t\r\n{\"b\":3,\"a\":4}\n{}");
        let brief = |record: &Result<Record, String>| {
            let record = record.as_ref().unwrap();
            (record.place().line, record.get("a").cloned(), record.get("b").cloned())
        };
        let number = |number| Some(Value::Integer(number));
        assert_eq!(brief(&found[0]), (1, number(1), number(2)));
        assert_eq!(brief(&found[1]), (4, number(4), number(3)));
        assert_eq!(brief(&found[2]), (5, None, None));
    }

    #[test]
    fn a_malformed_line() {
        let found = read("{}\n{\"a\": tru}\n{\"a\": true}");
        let error = found[1].as_ref().unwrap_err();
        assert!(error.contains(":2: expected a JSON object, found at column 10: expected ident"), "{error}");
        assert!(found[2].is_ok());
    }

    #[test]
    fn an_array() {
        let found = read("\n [\n{},\n{}]");
        assert_eq!(found.len(), 1);
        assert!(found[0].as_ref().unwrap_err().contains("found an array; write each"));
    }
}
