//! Parses a JSON object into the fields of a record.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};

use crate::{Value, records::brief};

/// An object with its members in order. A duplicate name is an error, since only one of its values could be used.
pub(super) struct Object(pub(super) Vec<(String, Value)>);

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
    let Object(members) = serde_json::from_str(line).map_err(|error| {
        let reason = error.to_string();
        // Drops the position, since there is only one line.
        let position = format!(" at line {} column {}", error.line(), error.column());
        Fault { column: error.column(), reason: brief(reason.strip_suffix(&position).unwrap_or(&reason)) }
    })?;
    // The parser turns such a number into a float, so it has to be searched for.
    if members.iter().any(|(_, value)| has_huge_number(value))
        && let Some(column) = find_huge_integer(line)
    {
        return Err(Fault { column, reason: HUGE.into() });
    }
    Ok(members)
}

const HUGE: &str = "a whole number beyond 64 bits; write it as a text";

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

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object, A::Error> {
                members(map).map(Object)
            }
        }

        deserializer.deserialize_map(Members)
    }
}

/// Any JSON value. The type is private, so that the public type makes no promises about deserializing.
struct Any(Value);

impl<'de> Deserialize<'de> for Any {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyVisitor).map(Any)
    }
}

struct AnyVisitor;

impl<'de> Visitor<'de> for AnyVisitor {
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
        while let Some(Any(value)) = list.next_element()? {
            values.push(value);
        }
        Ok(Value::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Value, A::Error> {
        members(map).map(Value::Map)
    }
}

fn members<'de, A: MapAccess<'de>>(mut map: A) -> Result<Vec<(String, Value)>, A::Error> {
    let mut members = Vec::new();
    while let Some((name, Any(value))) = map.next_entry::<String, Any>()? {
        members.push((name, value));
    }
    let mut names: Vec<_> = members.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(A::Error::custom(format!("the name {:?} twice in one object", brief(pair[0])))),
        None => Ok(members),
    }
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
        assert_eq!(fault("3"), "1: invalid type: integer `3`, expected a JSON object");
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
