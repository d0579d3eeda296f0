//! Parses JSON and rejects objects with a duplicate name.
//!
//! Readers differ in which value of a duplicate name they use, so one could use a value that another has not checked.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
};

use crate::{Value, records::brief};

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
