//! The names of a recipe's settings.

use serde::de::value::Error as ValueError;
use serde::de::{DeserializeOwned, Error, Visitor};
use serde::{Deserializer, forward_to_deserialize_any};

/// A deserializer that finds the names of a struct's fields, and gives it nothing.
pub(super) struct FieldsOf<'a>(&'a mut &'static [&'static str]);

impl FieldsOf<'_> {
    /// Returns the names of a recipe's settings.
    pub(super) fn recipe<R: DeserializeOwned>() -> &'static [&'static str] {
        let mut fields: &'static [&'static str] = &[];
        // It fails as soon as the fields are known.
        let _ = R::deserialize(FieldsOf(&mut fields));
        fields
    }
}

impl<'de> Deserializer<'de> for FieldsOf<'_> {
    type Error = ValueError;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, ValueError> {
        *self.0 = fields;
        Err(ValueError::custom("only the fields are asked for"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, ValueError> {
        Err(ValueError::custom("settings are named fields"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}
