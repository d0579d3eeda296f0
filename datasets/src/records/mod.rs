//! Records, their values, and what reads them.

mod fingerprinted;
mod malformed;

use std::fmt;
use std::sync::Arc;

pub use fingerprinted::Fingerprinted;
pub use malformed::{Malformed, Skipped};

use crate::{DataError, RecordPlace};

/// The records of one part, in order.
///
/// After an error that is [about one record](DataError::is_about_a_record), the iterator continues with the next
/// record; after any other error it ends.
pub type Records = Box<dyn Iterator<Item = Result<Record, DataError>> + Send>;

/// A source of records that can be read from the start any number of times.
///
/// It consists of parts, usually files, that can be read independently. Reading holds one record in memory at a time,
/// so the parts may be larger than memory.
pub trait Reader: fmt::Debug + Send + Sync + 'static {
    /// Returns the number of parts.
    fn parts(&self) -> usize;

    /// Starts reading a part.
    ///
    /// # Errors
    ///
    /// [`ReadError::NoPart`](crate::ReadError::NoPart) if there is no such part, [`DataError::Io`] if it cannot be
    /// opened, and any error of the format.
    fn open(&self, part: usize) -> Result<Records, DataError>;

    /// Returns the names of the classes that the whole numbers of a field stand for, by number, if the files say so.
    /// Default: they do not.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or files name the classes of the field differently.
    fn class_names(&self, field: &str) -> Result<Option<Vec<String>>, DataError> {
        let _ = field;
        Ok(None)
    }
}

impl<R: Reader + ?Sized> Reader for Box<R> {
    fn parts(&self) -> usize {
        (**self).parts()
    }

    fn open(&self, part: usize) -> Result<Records, DataError> {
        (**self).open(part)
    }

    fn class_names(&self, field: &str) -> Result<Option<Vec<String>>, DataError> {
        (**self).class_names(field)
    }
}

/// One value of a record.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// No value.
    Null,
    /// A Boolean.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// Any other number.
    Float(f64),
    /// A text.
    Text(String),
    /// Several values.
    List(Vec<Value>),
    /// Named values.
    Map(Vec<(String, Value)>),
}

/// A record: named values, and the place that errors report.
///
/// A name may be a path: `translation.en` is the value `en` of the map `translation`, unless a field has the name
/// `translation.en` itself.
///
/// # Example
///
/// ```
/// use std::{path::Path, sync::Arc};
/// use firebrick_datasets::{Record, RecordPlace, Value};
///
/// let place = RecordPlace { file: Path::new("train.jsonl").into(), line: 3 };
/// let record = Record::new(place, vec![("text".into(), Value::Text("hello".into()))]);
/// assert_eq!(record.text("text")?, "hello");
///
/// let error = record.text("txt").unwrap_err().to_string();
/// assert!(error.starts_with("train.jsonl:3, field `txt`: expected a text, found no such field"));
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    place: RecordPlace,
    fields: Vec<(Arc<str>, Value)>,
    /// Fields that exist but cannot be values, and their types, for the errors of [`expected`](Self::expected).
    pub(crate) unread: Vec<(Arc<str>, &'static str)>,
}

impl Record {
    /// Creates a record with these fields.
    pub fn new(place: RecordPlace, fields: Vec<(Arc<str>, Value)>) -> Self {
        Self { place, fields, unread: Vec::new() }
    }

    /// Returns the place of the record.
    pub fn place(&self) -> &RecordPlace {
        &self.place
    }

    /// Returns the names of the fields, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|(name, _)| &**name)
    }

    /// Returns the fields, in order.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.fields.iter().map(|(name, value)| (&**name, value))
    }

    /// Returns the number of bytes of its texts. Any other value counts as one byte.
    pub(crate) fn text_bytes(&self) -> usize {
        self.fields.iter().map(|(_, value)| value.text_bytes()).sum()
    }

    /// Returns the value at a path.
    pub fn get(&self, path: &str) -> Option<&Value> {
        if let Some((_, value)) = self.fields.iter().find(|(name, _)| **name == *path) {
            return Some(value);
        }
        let (first, rest) = path.split_once('.')?;
        let (_, value) = self.fields.iter().find(|(name, _)| **name == *first)?;
        value.get(rest)
    }

    /// Returns the text at a path.
    ///
    /// # Errors
    ///
    /// [`ReadError::Record`](crate::ReadError::Record) if there is no text at the path.
    pub fn text(&self, path: &str) -> Result<&str, DataError> {
        self.get(path).and_then(Value::as_text).ok_or_else(|| self.expected(path, "a text"))
    }

    /// Returns the texts of the list at a path.
    ///
    /// # Errors
    ///
    /// [`ReadError::Record`](crate::ReadError::Record) if there is no list at the path, or it contains something other than texts.
    pub fn texts(&self, path: &str) -> Result<Vec<&str>, DataError> {
        let Some(Value::List(values)) = self.get(path) else {
            return Err(self.expected(path, "a list of texts"));
        };
        values
            .iter()
            .map(Value::as_text)
            .collect::<Option<_>>()
            .ok_or_else(|| self.expected(path, "a list of texts"))
    }

    /// Creates the error for a field that is not as expected. The error describes the field.
    pub fn expected(&self, path: &str, expected: impl Into<String>) -> DataError {
        let found = match self.get(path) {
            Some(value) => value.to_string(),
            None => match self.unread_at(path) {
                Some(found) => format!("{found}, which the reader does not support"),
                None => {
                    let names: Vec<_> = self.names().take(20).collect();
                    let names = brief(&names.join(", "));
                    format!("no such field (the record has the fields {names})")
                }
            },
        };
        self.mismatch(path, expected, found)
    }

    fn unread_at(&self, path: &str) -> Option<&'static str> {
        let first = path.split('.').next().unwrap_or_default();
        let is_it = |name: &str| name == path || name == first;
        self.unread.iter().find(|(name, _)| is_it(name)).map(|(_, found)| *found)
    }

    /// Creates the error for a field in which something other than expected was found.
    pub fn mismatch(&self, path: &str, expected: impl Into<String>, found: impl Into<String>) -> DataError {
        DataError::record(self.place.clone(), Some(path), expected, found)
    }
}

impl Value {
    fn text_bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::List(values) => 1 + values.iter().map(Self::text_bytes).sum::<usize>(),
            Self::Map(fields) => {
                1 + fields.iter().map(|(name, value)| name.len() + value.text_bytes()).sum::<usize>()
            }
            Self::Null | Self::Bool(_) | Self::Integer(_) | Self::Float(_) => 1,
        }
    }

    fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    fn get(&self, path: &str) -> Option<&Value> {
        let Self::Map(fields) = self else { return None };
        if let Some((_, value)) = fields.iter().find(|(name, _)| name == path) {
            return Some(value);
        }
        let (first, rest) = path.split_once('.')?;
        fields.iter().find(|(name, _)| name == first)?.1.get(rest)
    }
}

/// Shortens a text for a message.
pub(crate) fn brief(text: &str) -> String {
    /// In characters.
    const LONGEST: usize = 200;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Writes the value as errors show it: briefly, regardless of its size.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => write!(f, "null"),
            Self::Bool(value) => write!(f, "{value}"),
            Self::Integer(value) => write!(f, "the number {value}"),
            Self::Float(value) => write!(f, "the number {value}"),
            Self::Text(text) => {
                let short: String = text.chars().take(40).collect();
                let dots = if short.len() < text.len() { "…" } else { "" };
                write!(f, "the text {short:?}{dots}")
            }
            Self::List(values) => write!(f, "a list of {}", values.len()),
            Self::Map(fields) => write!(f, "a map of {}", fields.len()),
        }
    }
}
