//! Reads JSON lines: a JSON object in each line.

use std::sync::Arc;

use super::{
    Files,
    lines::{LONGEST_RECORD, Lines, is_blank},
    records,
};
use crate::records::brief;
use crate::strict_json::Strict;
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
        let members = members(object(line), &place)?;
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
    object: Result<Vec<(String, Value)>, Fault>,
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
            let members = object(line);
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

/// The error in a JSON text.
#[derive(Debug)]
pub(super) struct Fault {
    /// The column, in bytes, from 1; 0 if the error has none.
    pub(super) column: usize,
    pub(super) reason: String,
}

/// Parses a line of JSON and returns the members of its object.
///
/// A whole number that does not fit in a signed 64-bit integer is an error, and so is an object or list nested within
/// more than 127 others.
fn object(line: &str) -> Result<Vec<(String, Value)>, Fault> {
    let Strict(value) = serde_json::from_str(line).map_err(|error| {
        let reason = error.to_string();
        // Drops the position, since there is only one line.
        let position = format!(" at line {} column {}", error.line(), error.column());
        Fault { column: error.column(), reason: brief(reason.strip_suffix(&position).unwrap_or(&reason)) }
    })?;
    let Value::Map(members) = value else {
        return Err(Fault { column: line.len() - line.trim_start().len() + 1, reason: value.to_string() });
    };
    // The parser turns such a number into a float, so it has to be searched for.
    if members.iter().any(|(_, value)| has_huge_number(value))
        && let Some(column) = find_huge_integer(line)
    {
        return Err(Fault { column, reason: HUGE.into() });
    }
    Ok(members)
}

const HUGE: &str = "an integer beyond 64 bits; write it as a string";

/// Returns whether the value contains a float that may have been a whole number too large for 64 bits.
fn has_huge_number(value: &Value) -> bool {
    match value {
        Value::Float(number) => number.abs() >= i64::MAX as f64,
        Value::List(values) => values.iter().any(has_huge_number),
        Value::Map(members) => members.iter().any(|(_, value)| has_huge_number(value)),
        Value::Null | Value::Bool(_) | Value::Integer(_) | Value::Text(_) => false,
    }
}

/// Returns the column of a whole number that does not fit in 64 bits, in valid JSON.
fn find_huge_integer(line: &str) -> Option<usize> {
    let bytes = line.as_bytes();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let start = at;
        at += 1;
        if byte == b'"' {
            while let Some(&byte) = bytes.get(at) {
                at += if byte == b'\\' { 2 } else { 1 };
                if byte == b'"' {
                    break;
                }
            }
        } else if byte == b'-' || byte.is_ascii_digit() {
            let is_number = |byte: &u8| byte.is_ascii_digit() || b".eE+-".contains(byte);
            at += bytes.iter().skip(at).take_while(|byte| is_number(byte)).count();
            let number = line.get(start..at).unwrap_or_default();
            if !number.contains(['.', 'e', 'E']) && number.parse::<i64>().is_err() {
                return Some(start + 1);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proptest::prelude::*;

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

    fn fault(line: &str) -> String {
        let Fault { column, reason } = object(line).unwrap_err();
        format!("{column}: {reason}")
    }

    #[test]
    fn values() {
        let members = object(r#" {"a": [null, true, -3, 1.5, "é\n"], "b": {"c": {}}, "d": 1e300} "#).unwrap();
        let text = |text: &str| Value::Text(text.into());
        let list = vec![Value::Null, Value::Bool(true), Value::Integer(-3), Value::Float(1.5), text("é\n")];
        assert_eq!(members[0], ("a".into(), Value::List(list)));
        assert_eq!(members[1], ("b".into(), Value::Map(vec![("c".into(), Value::Map(vec![]))])));
        assert_eq!(members[2], ("d".into(), Value::Float(1e300)));
    }

    #[test]
    fn whole_numbers() {
        for number in [i64::MIN, -1, 0, i64::MAX] {
            let members = object(&format!("{{\"n\":{number}}}")).unwrap();
            assert_eq!(members[0].1, Value::Integer(number));
        }
        assert!(fault(r#"{"n": 9223372036854775808}"#).ends_with(HUGE));
        assert_eq!(fault(r#"{"\"1": 1e19, "n": [{"m": -9223372036854775809}]}"#), format!("27: {HUGE}"));
        assert_eq!(fault(r#"{"n":123456789012345678901234567890}"#), format!("6: {HUGE}"));
        assert!(object(r#"{"t": "123456789012345678901234567890", "f": 1e30, "g": 1.0e30}"#).is_ok());
        assert_eq!(fault(r#"{"n": 1e999}"#), "11: number out of range");
    }

    #[test]
    fn faults() {
        assert_eq!(fault("3"), "1: the number 3");
        assert_eq!(fault(r#"{"a": 1, "b": 2, "a": 3}"#), "24: the name \"a\" twice in one object");
        assert_eq!(fault(r#"{"a": }"#), "7: expected value");
        assert_eq!(fault(r#"{"a": 1} x"#), "10: trailing characters");
        let long = format!("\"{}\"", "x".repeat(10_000));
        assert!(fault(&long).len() < 300);
        let deep = format!("{{\"a\":{}", "[".repeat(1_000_000));
        assert!(fault(&deep).contains("recursion limit exceeded"));
    }

    proptest! {
        #[test]
        fn a_huge_integer_is_found_at_any_place(before in "[a-z\\\\\"1-9]{0,8}", number in "[1-9][0-9]{19,30}") {
            let before = serde_json::to_string(&before).unwrap();
            let line = format!("{{{before}: [0, 1.5, {before}, {number}]}}");
            let column = line.rfind(&number).unwrap() + 1;
            prop_assert_eq!(fault(&line), format!("{column}: {HUGE}"));
        }
    }
}
