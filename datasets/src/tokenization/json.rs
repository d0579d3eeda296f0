//! Reads JSON from untrusted files.

use std::path::Path;

use serde_json::Value;

use crate::{DataError, strict_json::Strict, whole_file};

/// Reads a file of at most `most` bytes.
pub(super) fn bytes(path: &Path, most: u64) -> Result<Result<Vec<u8>, String>, DataError> {
    let size = std::fs::metadata(path).map_err(DataError::io(path))?.len();
    if size > most {
        return Ok(Err(format!("it has {size} bytes; the limit is {most}")));
    }
    whole_file::read(path).map(Ok)
}

/// Parses JSON and rejects objects with duplicate keys.
pub(super) fn parse(bytes: &[u8]) -> Result<Value, String> {
    let value: Strict = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    Ok(value.into_json())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_equal_serde_json_and_duplicate_keys_are_errors() {
        let json = r#"{"a": [1, -2, 3.5, true, null, "x\n"], "b": {"a": {}}}"#;
        assert_eq!(parse(json.as_bytes()).unwrap(), serde_json::from_str::<Value>(json).unwrap());
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
