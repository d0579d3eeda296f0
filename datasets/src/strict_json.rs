//! Parses JSON and rejects objects with a duplicate name.
//!
//! Readers differ in which value of a duplicate name they use, so one could use a value that another has not checked.

use std::fmt;
use std::path::Path;

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};

use crate::{DataError, Value, records::brief, whole_file};

/// Any JSON value, with the members of its objects in order. Nesting is limited to 128 levels.
///
/// The type is private, so that the public type makes no promises about deserializing.
pub(crate) struct Strict(pub(crate) Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor).map(Self)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Integer(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        // Converts like the parser does for larger numbers.
        Ok(i64::try_from(value).map_or(Value::Float(value as f64), Value::Integer))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Strict(value)) = list.next_element()? {
            values.push(value);
        }
        Ok(Value::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut members = Vec::new();
        while let Some((name, Strict(value))) = map.next_entry::<String, Strict>()? {
            members.push((name, value));
        }
        let mut names: Vec<_> = members.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(A::Error::custom(format!("the name {:?} twice in one object", brief(pair[0])))),
            None => Ok(Value::Map(members)),
        }
    }
}

impl Strict {
    /// Returns the value as one of `serde_json`.
    pub(crate) fn into_json(self) -> serde_json::Value {
        let json = |value: Value| Self(value).into_json();
        match self.0 {
            Value::Null => serde_json::Value::Null,
            Value::Bool(value) => value.into(),
            Value::Integer(number) => number.into(),
            Value::Float(number) => number.into(),
            Value::Text(text) => text.into(),
            Value::List(values) => values.into_iter().map(json).collect(),
            Value::Map(members) => members.into_iter().map(|(name, value)| (name, json(value))).collect(),
        }
    }
}

/// Reads a file of at most `most` bytes.
pub(crate) fn bytes(path: &Path, most: u64) -> Result<Result<Vec<u8>, String>, DataError> {
    let size = std::fs::metadata(path).map_err(DataError::io(path))?.len();
    if size > most {
        return Ok(Err(format!("it has {size} bytes; the limit is {most}")));
    }
    whole_file::read(path).map(Ok)
}

/// Parses JSON and rejects objects with duplicate keys.
pub(crate) fn parse(bytes: &[u8]) -> Result<serde_json::Value, String> {
    let value: Strict = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    Ok(value.into_json())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_equal_serde_json_and_duplicate_keys_are_errors() {
        let json = r#"{"a": [1, -2, 3.5, true, null, "x\n"], "b": {"a": {}}}"#;
        assert_eq!(parse(json.as_bytes()).unwrap(), serde_json::from_str::<serde_json::Value>(json).unwrap());
        let error = parse(br#"{"a": {"b": 1, "c": 2, "b": 3}}"#).unwrap_err();
        assert!(error.contains("the name \"b\" twice in one object"), "{error}");
        assert!(parse("[".repeat(1_000_000).as_bytes()).is_err());
        assert!(parse(b"\"\xff\"").is_err());
    }

    #[test]
    fn large_files_are_not_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "12345").unwrap();
        assert_eq!(bytes(file.path(), 5).unwrap().unwrap(), b"12345");
        assert_eq!(bytes(file.path(), 4).unwrap().unwrap_err(), "it has 5 bytes; the limit is 4");
        assert!(matches!(bytes(Path::new("no/such/file"), 4), Err(DataError::Io { .. })));
    }
}
