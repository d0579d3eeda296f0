//! The optimizers that a run file can name.

use std::fmt;
use std::sync::{LazyLock, PoisonError, RwLock};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::OptimizerRecipe;
use super::boxed::Erased;
use super::fields_of::FieldsOf;

/// Optimizers by name. [`OptimizerRecipe`] has an example of your own.
#[derive(Clone, Debug, Default)]
pub struct Optimizers {
    names: Vec<&'static str>,
    entries: Vec<Entry>,
}

/// How an optimizer is read.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub name: &'static str,
    /// The names of its settings.
    pub fields: &'static [&'static str],
    pub read: fn(&mut dyn erased_serde::Deserializer<'_>) -> erased_serde::Result<Box<dyn Erased>>,
}

/// The optimizers of this process.
static INSTALLED: LazyLock<RwLock<&'static Optimizers>> =
    LazyLock::new(|| RwLock::new(Optimizers::built_in().leaked()));

impl Optimizers {
    /// Returns a registry without optimizers. [`built_in`](Self::built_in) has those of this crate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers an optimizer by a name; a later one replaces an earlier one of the same name.
    pub fn with<R>(mut self, name: &'static str) -> Self
    where
        R: OptimizerRecipe + Clone + PartialEq + Serialize + DeserializeOwned + 'static,
    {
        let read =
            |settings: &mut dyn erased_serde::Deserializer<'_>| -> erased_serde::Result<Box<dyn Erased>> {
                Ok(Box::new(erased_serde::deserialize::<R>(settings)?))
            };
        let entry = Entry { name, fields: FieldsOf::recipe::<R>(), read };
        match self.names.iter().position(|known| *known == name) {
            Some(index) => self.entries[index] = entry,
            None => {
                self.names.push(name);
                self.entries.push(entry);
            }
        }
        self
    }

    /// Returns the names, in the order in which they were registered.
    pub fn names(&self) -> &[&'static str] {
        &self.names
    }

    /// Makes these the optimizers that this process reads. Call it once, before it reads a run file.
    pub fn install(self) {
        *INSTALLED.write().unwrap_or_else(PoisonError::into_inner) = self.leaked();
    }

    /// Returns the optimizers that this process reads: the built-in ones, unless others were
    /// [installed](Self::install).
    pub fn installed() -> &'static Self {
        *INSTALLED.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaks the registry: serde's errors borrow the expected names forever.
    fn leaked(self) -> &'static Self {
        Box::leak(Box::new(self))
    }

    pub(super) fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name, self.fields.join(", "))
    }
}
