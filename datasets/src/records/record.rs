//! Records and their values.

use std::{fmt, sync::Arc};

use crate::{DataError, RecordPlace};

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
