//! A recipe without its type.

use std::any::Any;
use std::fmt::{self, Debug, Formatter};
use std::ops::Deref;
use std::sync::Arc;

use serde::{Serialize, Serializer};

/// Any recipe of a kind, with the name by which it is registered.
pub struct Named<T: ?Sized> {
    name: &'static str,
    recipe: Arc<T>,
    /// The same recipe, as a value.
    settings: Arc<dyn Settings>,
}

/// A recipe as a value: it can be written, compared and printed. Implemented by each type that has these traits.
pub trait Settings: Any + Debug + Send + Sync {
    /// Returns whether `other` is the same recipe with the same settings.
    fn equals(&self, other: &dyn Any) -> bool;

    /// Returns the settings to be serialized.
    fn serializable(&self) -> &dyn erased_serde::Serialize;
}

impl<R: Any + Debug + PartialEq + Serialize + Send + Sync> Settings for R {
    fn equals(&self, other: &dyn Any) -> bool {
        other.downcast_ref::<R>() == Some(self)
    }

    fn serializable(&self) -> &dyn erased_serde::Serialize {
        self
    }
}

impl<T: ?Sized> Named<T> {
    /// Names a recipe, which is given twice: as its kind, and as a value. Each kind has a function that does this.
    pub fn of(name: &'static str, recipe: Arc<T>, settings: Arc<dyn Settings>) -> Self {
        Self { name, recipe, settings }
    }

    /// Returns the name by which the recipe is registered.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the recipe as its kind.
    pub fn recipe(&self) -> &Arc<T> {
        &self.recipe
    }

    /// Returns the recipe if it is of this type.
    pub fn downcast_ref<R: 'static>(&self) -> Option<&R> {
        let settings: &dyn Any = &*self.settings;
        settings.downcast_ref()
    }
}

impl<T: ?Sized> Deref for Named<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.recipe
    }
}

impl<T: ?Sized> Clone for Named<T> {
    fn clone(&self) -> Self {
        Self { name: self.name, recipe: self.recipe.clone(), settings: self.settings.clone() }
    }
}

impl<T: ?Sized> Debug for Named<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}

impl<T: ?Sized> PartialEq for Named<T> {
    fn eq(&self, other: &Self) -> bool {
        let other_settings: &dyn Any = &*other.settings;
        self.name == other.name && self.settings.equals(other_settings)
    }
}

/// Serializes as the variant of an enum: `AdamW(weight_decay: 0.1)`.
impl<T: ?Sized> Serialize for Named<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_variant("Recipe", 0, self.name, self.settings.serializable())
    }
}
