//! Parses a JSON object into the fields of a record.

use crate::{Value, records::brief, strict_json::Strict};

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
pub(super) fn object(line: &str) -> Result<Vec<(String, Value)>, Fault> {
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
    use proptest::prelude::*;

    use super::*;

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
