//! Composition of strategies: a list, an optional one, and several of one type.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use crate::{Composition, Strategy};

/// A list of strategies for the model `M`, as they are written. A new one is empty, and changes nothing.
///
/// ```
/// use burn::nn::Linear;
/// use firebrick_strategies::{Accumulate, Clip, Composed, Composition};
///
/// let bound = Some(1.0);
/// let strategies: Composed<Linear> = Composed::new().with(bound.map(Clip::norm)).with(Accumulate(4));
/// assert_eq!(strategies.strategies().len(), 2);
/// ```
///
/// If a type is not a strategy, the compiler names it:
///
/// ```compile_fail,E0277
/// use burn::nn::Linear;
/// use firebrick_strategies::{Accumulate, Composed};
///
/// let _: Composed<Linear> = Composed::new().with(Accumulate(2)).with("Clip"); // error[E0277]: `&str` is not a training strategy
/// ```
pub struct Composed<M: 'static>(Vec<Arc<dyn Composition<M>>>);

impl<M: 'static> Composed<M> {
    /// Creates an empty list.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Appends a strategy, or several.
    pub fn with(mut self, strategy: impl Composition<M>) -> Self {
        self.0.push(Arc::new(strategy));
        self
    }
}

impl<M: 'static> Composition<M> for Composed<M> {
    fn strategies(&self) -> Vec<&dyn Strategy<M>> {
        self.0.iter().flat_map(|composition| composition.strategies()).collect()
    }
}

impl<M: 'static, S: Composition<M>> Composition<M> for Option<S> {
    fn strategies(&self) -> Vec<&dyn Strategy<M>> {
        self.iter().flat_map(S::strategies).collect()
    }
}

impl<M: 'static, S: Composition<M>> Composition<M> for Vec<S> {
    fn strategies(&self) -> Vec<&dyn Strategy<M>> {
        self.iter().flat_map(S::strategies).collect()
    }
}

impl<M: 'static, S: Composition<M>> FromIterator<S> for Composed<M> {
    fn from_iter<I: IntoIterator<Item = S>>(strategies: I) -> Self {
        strategies.into_iter().fold(Self::new(), Self::with)
    }
}

impl<M: 'static> Default for Composed<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: 'static> Clone for Composed<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<M: 'static> Debug for Composed<M> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.strategies()).finish()
    }
}
