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
use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::fmt::{self, Debug, Formatter};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

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

    /// Calls `read`. Each [`Named`] of this kind that this thread deserializes meanwhile is one of these recipes; otherwise
    /// it is one of the [built-in](Self::built_in) ones.
    ///
    /// serde gives `Deserialize` no value besides the input, and a recipe may stand anywhere in a run file, in the settings
    /// of another recipe too.
    ///
    /// ```
    /// use firebrick_strategies::optim::{AdamW, BoxedOptimizer, Optimizers};
    ///
    /// let optimizers = Optimizers::default().optimizer::<AdamW>("Mine");
    /// let read = || serde_json::from_str::<BoxedOptimizer>(r#"{"Mine": {"weight_decay": 0.1}}"#);
    /// assert_eq!(optimizers.reading(read).unwrap().name(), "Mine");
    /// assert!(read().unwrap_err().to_string().starts_with("unknown variant `Mine`"));
    /// ```
    pub fn reading<R>(&self, read: impl FnOnce() -> R) -> R {
        let (kind, registry) = (TypeId::of::<T>(), Rc::new(self.clone()));
        let before = SCOPES.with_borrow_mut(|scopes| scopes.insert(kind, registry));
        let _restored = Restore { kind, before };
        read()
    }

    /// Returns the registry that this thread reads.
    fn current() -> Rc<Self> {
        let set = SCOPES.with_borrow(|scopes| scopes.get(&TypeId::of::<T>()).cloned());
        set.and_then(|registry| registry.downcast().ok()).unwrap_or_else(|| Rc::new(T::built_in()))
    }

    fn read(&self, name: &str) -> Option<Arc<Read<T>>> {
        let index = self.names.iter().position(|known| *known == name)?;
        Some(self.read[index].clone())
    }

    /// Returns the names for serde, whose errors borrow them forever. Each list is leaked once.
    fn expected(&self) -> &'static [&'static str] {
        static LISTS: Mutex<BTreeSet<&[&str]>> = Mutex::new(BTreeSet::new());
        let mut lists = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(list) = lists.get(&*self.names) {
            return list;
        }
        let list: &'static [&'static str] = self.names.clone().leak();
        lists.insert(list);
        list
    }
}

thread_local! {
    /// The registries that this thread reads in place of the built-in ones, by the kind of their recipes.
    static SCOPES: RefCell<HashMap<TypeId, Rc<dyn Any>>> = RefCell::default();
}

/// Puts back the registry of the scope around, when a scope ends.
struct Restore {
    kind: TypeId,
    before: Option<Rc<dyn Any>>,
}

impl Drop for Restore {
    fn drop(&mut self) {
        SCOPES.with_borrow_mut(|scopes| match self.before.take() {
            Some(before) => scopes.insert(self.kind, before),
            None => scopes.remove(&self.kind),
        });
    }
}

/// Prints the names.
impl<T: ?Sized> Debug for Registry<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.names).finish()
    }
}
