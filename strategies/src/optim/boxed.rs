//! An optimizer's recipe without its type.

use std::any::Any;
use std::fmt;
use std::ops::Deref;

use serde::{Serialize, Serializer};

use super::OptimizerRecipe;

/// The recipe of any [registered](super::Optimizers) optimizer, with its name: `AdamW(weight_decay: 0.1)`.
///
/// It serializes and deserializes like an enum whose variants are the registered optimizers.
///
/// ```
/// use firebrick_strategies::optim::{AdamW, BoxedOptimizer};
///
/// let optimizer = BoxedOptimizer::new("AdamW", AdamW::new().weight_decay(0.1));
/// assert_eq!(optimizer.matrix_decay(), 0.1);
/// ```
pub struct BoxedOptimizer {
    name: &'static str,
    recipe: Box<dyn Erased>,
}

/// What a boxed recipe does besides being a recipe.
pub(super) trait Erased: OptimizerRecipe + Any {
    fn boxed(&self) -> Box<dyn Erased>;
    fn equals(&self, other: &dyn Any) -> bool;
    fn settings(&self) -> &dyn erased_serde::Serialize;
}

impl<R: OptimizerRecipe + Any + Clone + PartialEq + Serialize> Erased for R {
    fn boxed(&self) -> Box<dyn Erased> {
        Box::new(self.clone())
    }

    fn equals(&self, other: &dyn Any) -> bool {
        other.downcast_ref::<R>() == Some(self)
    }

    fn settings(&self) -> &dyn erased_serde::Serialize {
        self
    }
}

impl BoxedOptimizer {
    /// Boxes a recipe that is registered by this name.
    pub fn new(
        name: &'static str,
        recipe: impl OptimizerRecipe + Any + Clone + PartialEq + Serialize,
    ) -> Self {
        Self::of(name, Box::new(recipe))
    }

    pub(super) fn of(name: &'static str, recipe: Box<dyn Erased>) -> Self {
        Self { name, recipe }
    }

    /// Returns the name by which the optimizer is registered.
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl Deref for BoxedOptimizer {
    type Target = dyn OptimizerRecipe;

    fn deref(&self) -> &Self::Target {
        &*self.recipe
    }
}

impl Clone for BoxedOptimizer {
    fn clone(&self) -> Self {
        Self { name: self.name, recipe: self.recipe.boxed() }
    }
}

impl fmt::Debug for BoxedOptimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.recipe.fmt(f)
    }
}

impl PartialEq for BoxedOptimizer {
    fn eq(&self, other: &Self) -> bool {
        let recipe: &dyn Any = &*other.recipe;
        self.name == other.name && self.recipe.equals(recipe)
    }
}

impl Serialize for BoxedOptimizer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_newtype_variant("Optimizer", 0, self.name, self.recipe.settings())
    }
}
