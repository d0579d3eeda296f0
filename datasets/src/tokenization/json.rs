//! Reads JSON from untrusted files.

use std::{fmt, path::Path};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Map, Value};

use crate::{DataError, whole_file};

/// Reads a file of at most `most` bytes.
pub(super) fn bytes(path: &Path, most: u64) -> Result<Result<Vec<u8>, String>, DataError> {
    let size = std::fs::metadata(path).map_err(DataError::io(path))?.len();
    if size > most {
        return Ok(Err(format!("it has {size} bytes, the most are {most}")));
    }
    whole_file::read(path).map(Ok)
}

/// Parses JSON and rejects objects with duplicate keys.
///
/// Readers differ in which value of a duplicate key they use, so one could use a value that another has not checked.
/// Nesting is limited to 128 levels.
pub(super) fn parse(bytes: &[u8]) -> Result<Value, String> {
    match serde_json::from_slice::<Strict>(bytes) {
        Ok(Strict(value)) => Ok(value),
        Err(error) => Err(error.to_string()),
    }
}

struct Strict(Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Values).map(Self)
    }
}

struct Values;

impl<'de> Visitor<'de> for Values {
    type Value = Value;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E: Error>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(Strict(value)) = values.next_element()? {
            all.push(value);
        }
        Ok(all.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some((key, Strict(value))) = entries.next_entry::<String, Strict>()? {
            if all.contains_key(&key) {
                return Err(A::Error::custom(format_args!("the key {key:?} is there twice")));
            }
            all.insert(key, value);
        }
        Ok(all.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_but_for_repeated_keys() {
        let json = r#"{"a": [1, -2, 3.5, true, null, "x\n"], "b": {"a": {}}}"#;
        assert_eq!(parse(json.as_bytes()).unwrap(), serde_json::from_str::<Value>(json).unwrap());
        let error = parse(br#"{"a": {"b": 1, "c": 2, "b": 3}}"#).unwrap_err();
        assert!(error.contains("\"b\" is there twice"), "{error}");
        assert!(parse("[".repeat(1_000_000).as_bytes()).is_err());
        assert!(parse(b"\"\xff\"").is_err());
    }

    #[test]
    fn large_files_are_not_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "12345").unwrap();
        assert_eq!(bytes(file.path(), 5).unwrap().unwrap(), b"12345");
        assert_eq!(bytes(file.path(), 4).unwrap().unwrap_err(), "it has 5 bytes, the most are 4");
        assert!(matches!(bytes(Path::new("no/such/file"), 4), Err(DataError::Io { .. })));
    }
}
