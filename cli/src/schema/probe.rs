//! Asks a type what it reads, through its own `Deserialize`.
//!
//! A [`Probe`] is a deserializer that follows a path into a value: a field, a variant, an item. At its end it notes what
//! is asked for there (a struct with these fields, an enum with these variants, a number) and stops with an error. One
//! probe answers for one place, so the whole of a type takes as many probes as it has places.

use std::cell::RefCell;
use std::fmt::{self, Display};

use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error, Expected, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

/// A step into a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A field of a struct, or of a variant that is one.
    Field(&'static str),
    /// The variant of an enum.
    Variant(&'static str),
    /// The value of a variant that has one without a name.
    Inside,
    /// The value of an option.
    Given,
    /// The items of a list; of a tuple, the first.
    Item,
    /// The values of a map.
    Value,
}

/// What a type asks for at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Bool,
    /// A whole number; the least that it may be, if it is known.
    Integer(Option<i64>),
    Number,
    Text,
    Option,
    List,
    Tuple(usize),
    Map,
    Struct(&'static [&'static str]),
    Enum(&'static [&'static str]),
    /// A variant, or a struct, without a value.
    Unit,
    /// A variant with a value.
    Newtype,
    /// Values of several types; what is expected, in words.
    Any(String),
}

/// A deserializer that follows a path.
pub(super) struct Probe<'a> {
    path: &'a [Step],
    asked: &'a RefCell<Option<Asked>>,
}

impl<'a> Probe<'a> {
    /// `asked` gets what is found at the end of the path; it stays as it is if the path leads nowhere.
    pub fn new(path: &'a [Step], asked: &'a RefCell<Option<Asked>>) -> Self {
        Self { path, asked }
    }

    /// Notes what is asked for, if the path ends here; returns the next step and the probe behind it otherwise.
    fn step(self, asked: Asked) -> Result<(Step, Self), Stop> {
        match self.path {
            [] => {
                self.asked.replace(Some(asked));
                Err(Stop::here())
            }
            [step, path @ ..] => Ok((*step, Self { path, asked: self.asked })),
        }
    }

    /// Notes what is asked for; no path leads further.
    fn end<T>(self, asked: Asked) -> Result<T, Stop> {
        self.step(asked).and(Err(Stop::here()))
    }
}

/// The end of a probe.
#[derive(Debug)]
pub(super) struct Stop(pub String);

impl Stop {
    fn here() -> Self {
        Self("the probe ends here".into())
    }
}

impl Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Stop {}

impl Error for Stop {
    fn custom<T: Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

/// Asks for a value of one kind.
macro_rules! ends {
    ($($function:ident: $asked:expr),* $(,)?) => {
        $(fn $function<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Stop> {
            self.end($asked)
        })*
    };
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Stop;

    ends! {
        deserialize_bool: Asked::Bool,
        deserialize_i8: Asked::Integer(None),
        deserialize_i16: Asked::Integer(None),
        deserialize_i32: Asked::Integer(None),
        deserialize_i64: Asked::Integer(None),
        deserialize_i128: Asked::Integer(None),
        deserialize_u8: Asked::Integer(Some(0)),
        deserialize_u16: Asked::Integer(Some(0)),
        deserialize_u32: Asked::Integer(Some(0)),
        deserialize_u64: Asked::Integer(Some(0)),
        deserialize_u128: Asked::Integer(Some(0)),
        deserialize_f32: Asked::Number,
        deserialize_f64: Asked::Number,
        deserialize_char: Asked::Text,
        deserialize_str: Asked::Text,
        deserialize_string: Asked::Text,
        deserialize_bytes: Asked::Text,
        deserialize_byte_buf: Asked::Text,
        deserialize_identifier: Asked::Text,
        deserialize_unit: Asked::Unit,
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, _: V) -> Result<V::Value, Stop> {
        self.end(Asked::Unit)
    }

    /// An untagged enum buffers a value before it says what it expects: its error says it.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        let words = (&visitor as &dyn Expected).to_string();
        let asked = self.asked;
        if self.path.is_empty() {
            asked.replace(Some(Asked::Any(words)));
        }
        visitor.visit_unit()
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        self.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        match self.step(Asked::Option)? {
            (Step::Given, probe) => visitor.visit_some(probe),
            _ => Err(Stop::here()),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Stop> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        match self.step(Asked::List)? {
            (Step::Item, probe) => visitor.visit_seq(One(Some(probe))),
            _ => Err(Stop::here()),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Stop> {
        match self.step(Asked::Tuple(length))? {
            (Step::Item, probe) => visitor.visit_seq(One(Some(probe))),
            _ => Err(Stop::here()),
        }
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, Stop> {
        self.deserialize_tuple(length, visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        match self.step(Asked::Map)? {
            (Step::Value, probe) => visitor.visit_map(Entry { name: Some("name"), value: Some(probe) }),
            _ => Err(Stop::here()),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        match self.step(Asked::Struct(fields))? {
            (Step::Field(name), probe) => visitor.visit_map(Entry { name: Some(name), value: Some(probe) }),
            _ => Err(Stop::here()),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        match self.step(Asked::Enum(variants))? {
            (Step::Variant(name), probe) => visitor.visit_enum(OneOf { name, probe }),
            _ => Err(Stop::here()),
        }
    }
}

/// A list of one item.
struct One<'a>(Option<Probe<'a>>);

impl<'de> SeqAccess<'de> for One<'_> {
    type Error = Stop;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Stop> {
        self.0.take().map(|probe| seed.deserialize(probe)).transpose()
    }
}

/// A struct or a map with one entry.
struct Entry<'a> {
    name: Option<&'static str>,
    value: Option<Probe<'a>>,
}

impl<'de> MapAccess<'de> for Entry<'_> {
    type Error = Stop;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Stop> {
        let name: Option<StrDeserializer<'_, Stop>> =
            self.name.take().map(IntoDeserializer::into_deserializer);
        name.map(|name| seed.deserialize(name)).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Stop> {
        seed.deserialize(self.value.take().ok_or_else(Stop::here)?)
    }
}

/// A variant.
struct OneOf<'a> {
    name: &'static str,
    probe: Probe<'a>,
}

impl<'de, 'a> EnumAccess<'de> for OneOf<'a> {
    type Error = Stop;
    type Variant = Probe<'a>;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Probe<'a>), Stop> {
        let name: StrDeserializer<'_, Stop> = self.name.into_deserializer();
        Ok((seed.deserialize(name)?, self.probe))
    }
}

impl<'de> VariantAccess<'de> for Probe<'_> {
    type Error = Stop;

    fn unit_variant(self) -> Result<(), Stop> {
        self.end(Asked::Unit)
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Stop> {
        match self.step(Asked::Newtype)? {
            (Step::Inside, probe) => seed.deserialize(probe),
            _ => Err(Stop::here()),
        }
    }

    fn tuple_variant<V: Visitor<'de>>(self, length: usize, visitor: V) -> Result<V::Value, Stop> {
        self.deserialize_tuple(length, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        self.deserialize_struct("", fields, visitor)
    }
}
