//! Deserializes a registered recipe by its name, and the settings of those that read them by hand.
//!
//! A registry cannot know the type of the deserializer, so the settings of a recipe are read through `erased-serde`,
//! which turns every error in them into a text.

use std::fmt;
use std::sync::Arc;

use serde::de::{DeserializeSeed, EnumAccess, Error, MapAccess, VariantAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{Named, Read, Registered, Registry};

impl<'de, T: Registered + ?Sized> Deserialize<'de> for Named<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let registry = Registry::<T>::current();
        deserializer.deserialize_enum("Recipe", registry.expected(), OneOf(&registry))
    }
}

/// Visits the enum whose variants are registered.
struct OneOf<'a, T: Registered + ?Sized>(&'a Registry<T>);

impl<'de, T: Registered + ?Sized> Visitor<'de> for OneOf<'_, T> {
    type Value = Named<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::KIND)
    }

    fn visit_enum<A: EnumAccess<'de>>(self, data: A) -> Result<Named<T>, A::Error> {
        let (read, variant) = data.variant_seed(Name(self.0))?;
        variant.newtype_variant_seed(Recipe(read))
    }
}

/// Reads the name of a recipe.
struct Name<'a, T: Registered + ?Sized>(&'a Registry<T>);

impl<'de, T: Registered + ?Sized> DeserializeSeed<'de> for Name<'_, T> {
    type Value = Arc<Read<T>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_identifier(self)
    }
}

impl<T: Registered + ?Sized> Visitor<'_> for Name<'_, T> {
    type Value = Arc<Read<T>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        self.0.read(name).ok_or_else(|| E::unknown_variant(name, self.0.expected()))
    }
}

/// Reads the settings of a recipe.
struct Recipe<T: ?Sized + 'static>(Arc<Read<T>>);

impl<'de, T: ?Sized> DeserializeSeed<'de> for Recipe<T> {
    type Value = Named<T>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Named<T>, D::Error> {
        (self.0)(&mut <dyn erased_serde::Deserializer<'_>>::erase(deserializer)).map_err(D::Error::custom)
    }
}

/// Reads the value of a setting, which may stand in a recipe once, into its place.
///
/// # Errors
///
/// The setting stands there twice, or its value is not one of its type.
pub(crate) fn once<'de, A: MapAccess<'de>, T: Deserialize<'de>>(
    place: &mut Option<T>,
    name: &'static str,
    map: &mut A,
) -> Result<(), A::Error> {
    match place.replace(map.next_value()?) {
        None => Ok(()),
        Some(_) => Err(A::Error::duplicate_field(name)),
    }
}
