//! Deserializes a registered recipe by its name.
//!
//! A registry cannot know the type of the deserializer, so settings are read through `erased-serde`, which turns every
//! error into a text. Unknown names are found before that, so that an error still has the name and the known ones; so are fields that are
//! given twice.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, EnumAccess, Error, IntoDeserializer, MapAccess, VariantAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::registry::Entry;
use super::{BoxedOptimizer, Optimizers};

/// Visits the enum whose variants are registered.
struct OneOf(&'static Optimizers);

impl<'de> Visitor<'de> for OneOf {
    type Value = BoxedOptimizer;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an optimizer")
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<BoxedOptimizer, A::Error> {
        let (name, variant) = data.variant_seed(Variant(self.0.names()))?;
        let entry = self.0.entry(name).ok_or_else(|| A::Error::unknown_variant(name, self.0.names()))?;
        variant.struct_variant(entry.fields, Settings(entry))
    }
}

/// Reads the name of a variant.
struct Variant(&'static [&'static str]);

/// Reads the name of a field.
struct Field(&'static [&'static str]);

/// Implements the seed and the visitor of a name that must be known.
macro_rules! reads_a_known_name {
    ($seed:ident, $unknown:ident) => {
        impl<'de> DeserializeSeed<'de> for $seed {
            type Value = &'static str;

            fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<&'static str, D::Error> {
                deserializer.deserialize_identifier(self)
            }
        }

        impl Visitor<'_> for $seed {
            type Value = &'static str;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<&'static str, E> {
                let known = self.0.iter().find(|known| **known == name);
                known.copied().ok_or_else(|| E::$unknown(name, self.0))
            }
        }
    };
}

reads_a_known_name!(Variant, unknown_variant);
reads_a_known_name!(Field, unknown_field);

/// Visits the settings of a recipe.
struct Settings(&'static Entry);

impl<'de> Visitor<'de> for Settings {
    type Value = BoxedOptimizer;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the settings of {}", self.0.name)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<BoxedOptimizer, A::Error> {
        let mut first_error = None;
        let seen = Vec::new();
        let map = KnownFields { map, fields: self.0.fields, seen, first_error: &mut first_error };
        let recipe =
            (self.0.read)(&mut <dyn erased_serde::Deserializer<'_>>::erase(MapAccessDeserializer::new(map)));
        match recipe {
            Ok(recipe) => Ok(BoxedOptimizer::of(self.0.name, recipe)),
            Err(erased) => Err(first_error.unwrap_or_else(|| A::Error::custom(erased))),
        }
    }
}

/// A map whose keys are fields, which keeps its first error as it was before it is erased.
struct KnownFields<'a, A, E> {
    map: A,
    fields: &'static [&'static str],
    seen: Vec<&'static str>,
    first_error: &'a mut Option<E>,
}

impl<E: Error, A> KnownFields<'_, A, E> {
    fn keep<T>(&mut self, result: Result<T, E>) -> Result<T, E> {
        result.map_err(|error| {
            let text = E::custom(&error);
            self.first_error.get_or_insert(error);
            text
        })
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for KnownFields<'_, A, A::Error> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        let name = match self.map.next_key_seed(Field(self.fields)) {
            Ok(Some(name)) if self.seen.contains(&name) => Err(A::Error::duplicate_field(name)),
            name => name,
        };
        let name = self.keep(name)?;
        self.seen.extend(name);
        name.map(|name| seed.deserialize(name.into_deserializer())).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        let value = self.map.next_value_seed(seed);
        self.keep(value)
    }
}

impl<'de> Deserialize<'de> for BoxedOptimizer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let known = Optimizers::installed();
        deserializer.deserialize_enum("Optimizer", known.names(), OneOf(known))
    }
}
