//! Fingerprints records while they are read.

use std::sync::{Arc, OnceLock};

use super::{Reader, Record, Records, Value};
use crate::{DataError, Fingerprint};

/// A reader that fingerprints its records while they are read for the first time. Clones share the fingerprint.
///
/// For samples in memory, the fingerprint is known once they are loaded; for a [`Stream`](crate::Stream), once it is
/// open. Nothing is read twice.
///
#[cfg_attr(feature = "text", doc = "```")]
#[cfg_attr(not(feature = "text"), doc = "```ignore")]
/// use firebrick_datasets::{Fingerprinted, JsonlReader, Reader};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.jsonl");
/// std::fs::write(&path, "{\"text\": \"to be\"}\n")?;
/// let reader = Fingerprinted::new(JsonlReader::new(path));
/// assert!(reader.fingerprint().is_none());
/// for part in 0..reader.parts() {
///     for record in reader.open(part)? {
///         record?;
///     }
/// }
/// assert!(reader.fingerprint().is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Fingerprinted {
    reader: Arc<dyn Reader>,
    /// The fingerprint of each part that was read to its end.
    parts: Arc<[OnceLock<Fingerprint>]>,
}

impl Fingerprinted {
    /// Wraps a reader.
    pub fn new(reader: impl Reader) -> Self {
        let parts = (0..reader.parts()).map(|_| OnceLock::new()).collect();
        Self { reader: Arc::new(reader), parts }
    }

    /// Returns the fingerprint of all records, or `None` until every part was read to its end.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        let parts: Option<Vec<_>> = self.parts.iter().map(|part| part.get().copied()).collect();
        parts.map(Fingerprint::of_all)
    }
}

impl Reader for Fingerprinted {
    fn parts(&self) -> usize {
        self.reader.parts()
    }

    fn open(&self, part: usize) -> Result<Records, DataError> {
        let records = self.reader.open(part)?;
        match self.parts.get(part).is_some_and(|known| known.get().is_none()) {
            true => Ok(Box::new(Reading { records, sum: Sum::default(), parts: self.parts.clone(), part })),
            false => Ok(records),
        }
    }

    fn class_names(&self, field: &str) -> Result<Option<Vec<String>>, DataError> {
        self.reader.class_names(field)
    }
}

/// A part that is being read for the first time.
struct Reading {
    records: Records,
    sum: Sum,
    parts: Arc<[OnceLock<Fingerprint>]>,
    part: usize,
}

impl Iterator for Reading {
    type Item = Result<Record, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.records.next();
        match &next {
            // A malformed record ends the reading or is skipped.
            Some(Err(_)) => {}
            Some(Ok(record)) => self.sum.add(record),
            None => drop(self.parts[self.part].set(self.sum.fingerprint())),
        }
        next
    }
}

/// Hashes a sequence of records. Different sequences hash different bytes.
#[derive(Default)]
struct Sum {
    hasher: blake3::Hasher,
    /// The bytes of one record.
    bytes: Vec<u8>,
}

impl Sum {
    fn add(&mut self, record: &Record) {
        self.bytes.clear();
        record.fields().for_each(|(name, value)| {
            put_text(&mut self.bytes, b'n', name);
            put(&mut self.bytes, value);
        });
        self.bytes.push(b'.');
        self.hasher.update(&self.bytes);
    }

    fn fingerprint(&self) -> Fingerprint {
        (&self.hasher).into()
    }
}

fn put(bytes: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Null => bytes.push(b'0'),
        Value::Bool(value) => bytes.extend([b'b', u8::from(*value)]),
        Value::Integer(value) => {
            bytes.push(b'i');
            bytes.extend(value.to_le_bytes());
        }
        Value::Float(value) => {
            bytes.push(b'f');
            bytes.extend(value.to_bits().to_le_bytes());
        }
        Value::Text(text) => put_text(bytes, b't', text),
        Value::List(values) => {
            put_count(bytes, b'l', values.len());
            values.iter().for_each(|value| put(bytes, value));
        }
        Value::Map(fields) => {
            put_count(bytes, b'm', fields.len());
            fields.iter().for_each(|(name, value)| {
                put_text(bytes, b'n', name);
                put(bytes, value);
            });
        }
    }
}

fn put_text(bytes: &mut Vec<u8>, kind: u8, text: &str) {
    put_count(bytes, kind, text.len());
    bytes.extend(text.as_bytes());
}

fn put_count(bytes: &mut Vec<u8>, kind: u8, count: usize) {
    bytes.push(kind);
    bytes.extend((count as u64).to_le_bytes());
}

#[cfg(test)]
#[cfg(feature = "text")]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::JsonlReader;

    /// The fingerprint of files of JSON lines, one part each.
    fn of(files: &[&str]) -> Fingerprint {
        let folder = tempfile::tempdir().unwrap();
        let paths = files.iter().enumerate().map(|(at, text)| {
            let path = folder.path().join(format!("{at}.jsonl"));
            fs::write(&path, text).unwrap();
            path
        });
        let reader = Fingerprinted::new(JsonlReader::new(paths.collect::<Vec<_>>()));
        read(&reader);
        reader.fingerprint().unwrap()
    }

    fn read(reader: &Fingerprinted) {
        (0..reader.parts()).for_each(|part| reader.open(part).unwrap().for_each(drop));
    }

    #[test]
    fn different_content_has_a_different_fingerprint() {
        let all = [
            of(&["{\"a\":\"b\"}\n"]),
            of(&["{\"a\":\"c\"}\n"]),
            of(&["{\"b\":\"b\"}\n"]),
            of(&["{\"a\":\"b\"}\n{\"a\":\"b\"}\n"]),
            of(&["{\"a\":\"b\",\"c\":1}\n"]),
            of(&["{\"a\":\"b\",\"c\":1.0}\n"]),
            of(&["{\"a\":\"b\",\"c\":true}\n"]),
            of(&["{\"a\":\"b\",\"c\":null}\n"]),
            of(&["{\"a\":[\"b\",\"c\"]}\n"]),
            of(&["{\"a\":[[\"b\"],\"c\"]}\n"]),
            of(&["{\"a\":{\"b\":\"c\"}}\n"]),
            of(&["{\"a\":1}\n{\"a\":2}\n"]),
            of(&["{\"a\":2}\n{\"a\":1}\n"]),
            of(&["{\"a\":1}\n", "{\"a\":2}\n"]),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[at + 1..].contains(one), "{at}");
        }
        // Spaces and compression are not part of the content.
        assert_eq!(of(&["{ \"a\" : \"b\" }\n\n"]), all[0]);
    }

    #[test]
    fn the_fingerprint_is_known_after_one_full_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        fs::write(&path, "{\"a\":1}\n{\"a\":2}\n").unwrap();
        let reader = Fingerprinted::new(JsonlReader::new(Path::new(&path)));
        reader.open(0).unwrap().next().unwrap().unwrap();
        assert_eq!(reader.fingerprint(), None, "half of it");
        let other = reader.clone();
        read(&other);
        let known = reader.fingerprint().unwrap();
        read(&reader);
        assert_eq!(reader.fingerprint(), Some(known));
    }
}
