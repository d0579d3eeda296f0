//! Recipes by the names that they have in run files.
//!
//! A [`Registry`] lists the recipes of one kind, such as the [optimizers](crate::optim::OptimizerRecipe), and
//! [`Named`] is any of them. `Named` serializes and deserializes like an enum whose variants are the registered recipes,
//! but a program can add its own.
//!
//! ```text
//! mod.rs    Registry: the recipes of one kind
//! named.rs  Named: a recipe without its type
//! read.rs   deserializes a recipe by its name
//! ```

mod named;
mod read;

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt::{self, Debug, Formatter};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use serde::de::DeserializeOwned;

pub use named::{Named, Settings};
pub(crate) use read::once;

/// The trait object of a kind of recipe, such as `dyn OptimizerRecipe`.
pub trait Registered: Send + Sync + 'static {
    /// The kind, for messages: "an optimizer".
    const KIND: &'static str;

    /// Returns the recipes that Firebrick has.
    fn built_in() -> Registry<Self>;
}

type Read<T> =
    dyn Fn(&mut dyn erased_serde::Deserializer<'_>) -> erased_serde::Result<Named<T>> + Send + Sync;

/// The recipes of one kind by name.
pub struct Registry<T: ?Sized> {
    names: Vec<&'static str>,
    read: Vec<Arc<Read<T>>>,
}

/// The registries of this process by the kind of their recipes.
static INSTALLED: LazyLock<RwLock<HashMap<TypeId, &'static (dyn Any + Send + Sync)>>> =
    LazyLock::new(RwLock::default);

impl<T: ?Sized> Default for Registry<T> {
    fn default() -> Self {
        Self { names: Vec::new(), read: Vec::new() }
    }
}

impl<T: ?Sized> Clone for Registry<T> {
    fn clone(&self) -> Self {
        Self { names: self.names.clone(), read: self.read.clone() }
    }
}

impl<T: Registered + ?Sized> Registry<T> {
    /// Returns the recipes that Firebrick has.
    pub fn built_in() -> Self {
        T::built_in()
    }

    /// Registers a recipe by a name; a later one replaces an earlier one of the same name. `name_it` makes the recipe a
    /// [`Named`], for which each kind has a function.
    pub fn with<R: DeserializeOwned>(
        mut self,
        name: &'static str,
        name_it: impl Fn(&'static str, R) -> Named<T> + Send + Sync + 'static,
    ) -> Self {
        self.add(
            name,
            Arc::new(move |deserializer| {
                erased_serde::deserialize::<R>(deserializer).map(|recipe| name_it(name, recipe))
            }),
        );
        self
    }

    fn add(&mut self, name: &'static str, read: Arc<Read<T>>) {
        match self.names.iter().position(|known| *known == name) {
            Some(index) => self.read[index] = read,
            None => {
                self.names.push(name);
                self.read.push(read);
            }
        }
    }

    /// Registers the last recipe by another name too, by which it is read but not written.
    pub fn also(mut self, name: &'static str) -> Self {
        if let Some(read) = self.read.last().cloned() {
            let before = self.names.len() - 1;
            self.names.insert(before, name);
            self.read.insert(before, read);
        }
        self
    }

    /// Returns the names, in the order in which they were registered.
    pub fn names(&self) -> &[&'static str] {
        &self.names
    }

    /// Adds these recipes to those that this process reads. Call it once, before it reads a run file.
    pub fn install(self) {
        let mut installed = INSTALLED.write().unwrap_or_else(PoisonError::into_inner);
        let known = installed.get(&TypeId::of::<T>()).and_then(|registry| registry.downcast_ref::<Self>());
        let mut registry = known.cloned().unwrap_or_default();
        std::iter::zip(self.names, self.read).for_each(|(name, read)| registry.add(name, read));
        // Leaked, because serde's errors borrow the expected names forever.
        let registry: &'static Self = Box::leak(Box::new(registry));
        installed.insert(TypeId::of::<T>(), registry);
    }

    /// Returns the registry that this process reads: the built-in recipes, or those that were
    /// [installed](Self::install).
    pub fn installed() -> &'static Self {
        let known = INSTALLED.read().unwrap_or_else(PoisonError::into_inner).get(&TypeId::of::<T>()).copied();
        match known.and_then(|registry| registry.downcast_ref()) {
            Some(registry) => registry,
            None => {
                T::built_in().install();
                Self::installed()
            }
        }
    }

    fn read(&self, name: &str) -> Option<&Read<T>> {
        let index = self.names.iter().position(|known| *known == name)?;
        Some(&*self.read[index])
    }
}

/// Prints the names.
impl<T: ?Sized> Debug for Registry<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.names).finish()
    }
}
