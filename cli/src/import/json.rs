//! Parses JSON into fields with their lines, without losing any.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt;
use std::io::{self, Read};

use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserializer, Serialize};

use super::ImportError;

/// A limit far above any configuration. So few fields can be searched one by one.
pub(super) const MOST_FIELDS: usize = 5000;

/// The most characters of a field name, which paths repeat.
const LONGEST_NAME: usize = 200;

/// A JSON value.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Number(serde_json::Number),
    Text(String),
    List(Vec<Json>),
    #[serde(serialize_with = "as_map")]
    Object(Vec<Entry>),
}

/// A field of an object.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub name: String,
    /// The line of the name, counted from 1.
    pub line: usize,
    pub value: Json,
}

fn as_map<S: serde::Serializer>(entries: &[Entry], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(entries.iter().map(|entry| (&entry.name, &entry.value)))
}

impl fmt::Display for Json {
    /// Writes the value as JSON in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).unwrap_or_default())
    }
}

/// Parses the text of a file.
///
/// # Errors
///
/// The text is not JSON, is nested more than 127 deep, has too many fields or too long a name, or has a field twice.
pub(super) fn parse(file: &str, text: &str) -> Result<Json, ImportError> {
    let text = text.trim_start_matches('\u{feff}');
    let state = State { file, line: Cell::new(1), fields: Cell::new(0), fault: RefCell::new(None) };
    let lines = Lines { rest: text.as_bytes(), line: &state.line };
    let mut deserializer = serde_json::Deserializer::from_reader(lines);
    let value = Value { state: &state, path: "" };
    let read = value.deserialize(&mut deserializer).and_then(|json| deserializer.end().map(|()| json));
    read.map_err(|error| state.fault.take().unwrap_or_else(|| syntax(file, text, &error)))
}

fn syntax(file: &str, text: &str, error: &serde_json::Error) -> ImportError {
    let (line, column) = (error.line().max(1), error.column().max(1));
    let said = error.to_string();
    let said = said.rsplit_once(" at line ").map_or(said.as_str(), |(said, _)| said);
    let begun = text.lines().nth(line - 1).unwrap_or_default().trim_start();
    let hint = match begun.starts_with(['/', '#']) || begun.contains(" //") || begun.contains(" #") {
        true => "; JSON has no comments, although DeepSpeed reads them: take them out",
        false => "",
    };
    ImportError::Syntax { file: file.into(), line, column, reason: format!("not JSON: {said}{hint}") }
}

/// Returns the path of a field in an object. A name that could be mistaken for a path is quoted.
pub(super) fn joined(path: &str, name: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-/@+".contains(c);
    let name = match !name.is_empty() && name.chars().all(is_plain) {
        true => name.to_string(),
        false => format!("{name:?}"),
    };
    if path.is_empty() { name } else { format!("{path}.{name}") }
}

/// Yields bytes one at a time and counts lines, so that the count is the line of the name just read.
struct Lines<'a> {
    rest: &'a [u8],
    line: &'a Cell<usize>,
}

impl Read for Lines<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let ([byte, rest @ ..], [place, ..]) = (self.rest, buffer) else { return Ok(0) };
        (*place, self.rest) = (*byte, rest);
        self.line.set(self.line.get() + usize::from(*byte == b'\n'));
        Ok(1)
    }
}

struct State<'a> {
    file: &'a str,
    line: Cell<usize>,
    fields: Cell<usize>,
    fault: RefCell<Option<ImportError>>,
}

struct Value<'a> {
    state: &'a State<'a>,
    path: &'a str,
}

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = Json;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(serde_json::Number::from_f64(value).map_or(Json::Null, Json::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = elements.next_element_seed(Value { ..self })? {
            list.push(element);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let (mut entries, mut names) = (Vec::new(), HashSet::new());
        while let Some(name) = map.next_key::<String>()? {
            let (line, path) = (self.state.line.get(), joined(self.path, &name));
            self.state.fields.set(self.state.fields.get() + 1);
            let file = self.state.file.to_string();
            let too_large =
                |most, what| Some(ImportError::NoConfiguration { file: file.clone(), line, most, what });
            let fault = match names.insert(name.clone()) {
                false => Some(ImportError::Twice { file: file.clone(), line, field: path.clone() }),
                true if self.state.fields.get() > MOST_FIELDS => too_large(MOST_FIELDS, "fields"),
                true if name.chars().nth(LONGEST_NAME).is_some() => {
                    too_large(LONGEST_NAME, "characters in a name")
                }
                true => None,
            };
            if fault.is_some() {
                *self.state.fault.borrow_mut() = fault;
                return Err(A::Error::custom("see `fault`"));
            }
            let value = map.next_value_seed(Value { state: self.state, path: &path })?;
            entries.push(Entry { name, line, value });
        }
        Ok(Json::Object(entries))
    }
}

#[cfg(test)]
#[path = "json_tests.rs"]
mod tests;
