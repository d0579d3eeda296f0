//! Values that are read from their RON text: `firebrick` reads RON with the feature `ron` only.

use std::fmt;

use ron::error::SpannedResult;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};

/// The name by which RON is asked for the text of a value, as its `RawValue` asks. Other formats pass over the name.
const TEXT: &str = "$ron::private::RawValue";

/// Reads a value from RON with `parse`, which gets its text, and from other formats as usual.
///
/// Two kinds of values need their text: one in another dialect of RON than the text around it, and an untagged enum in
/// the settings of a registered recipe. RON reads such an enum by the type of the deserializer, which a registry erases.
pub(crate) fn deserialize<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
    parse: fn(&str) -> SpannedResult<T>,
) -> Result<T, D::Error> {
    let read = deserializer.deserialize_newtype_struct(TEXT, TextOrValue(parse))?;
    read.map_err(D::Error::custom)
}

struct TextOrValue<T>(fn(&str) -> SpannedResult<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for TextOrValue<T> {
    // RON replaces an error of the visitor with its own.
    type Value = Result<T, String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(self.0(text).map_err(|error| error.code.to_string()))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, value: D) -> Result<Self::Value, D::Error> {
        T::deserialize(value).map(Ok)
    }
}
