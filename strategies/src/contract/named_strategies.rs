//! The strategies that a run file can name.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::registry::{Named, Registered, Registry};
use crate::{Composition, Strategy};

/// Any [registered](Strategies) strategy for the model `M`: `Clip(norm: 1.0)`.
pub type NamedStrategy<M> = Named<dyn Strategy<M>>;

/// The strategies that a run file can name, for the model `M`.
///
/// A recipe that implements `PartialEq` and serde's traits is an entry of the run file once it is registered:
///
/// ```
/// use burn::nn::Linear;
/// use firebrick_strategies::registry::Registry;
/// use firebrick_strategies::{Clip, Strategies};
///
/// let strategies: Strategies<Linear> = Registry::built_in().strategy::<Clip>("Bound"); // `Bound(norm: 1.0)`
/// assert!(strategies.names().contains(&"Bound"));
/// ```
pub type Strategies<M> = Registry<dyn Strategy<M>>;

impl<M: 'static> NamedStrategy<M> {
    /// Names a recipe that is registered by this name.
    pub fn new<R: Strategy<M> + PartialEq + Serialize>(name: &'static str, recipe: R) -> Self {
        let recipe = Arc::new(recipe);
        Self::of(name, recipe.clone(), recipe)
    }
}

impl<M: 'static> Composition<M> for NamedStrategy<M> {
    fn strategies(&self) -> Vec<&dyn Strategy<M>> {
        vec![&**self.recipe()]
    }
}

impl<M: 'static> Strategies<M>
where
    dyn Strategy<M>: Registered,
{
    /// Registers a strategy by a name; a later one replaces an earlier one of the same name.
    pub fn strategy<R>(self, name: &'static str) -> Self
    where
        R: Strategy<M> + PartialEq + Serialize + DeserializeOwned,
    {
        self.with(name, NamedStrategy::new::<R>)
    }
}
