//! A type-erased strategy: code that uses it is compiled once per model, not once per composition.

use std::fmt::{self, Debug, Formatter};
use std::sync::Arc;

use crate::{Composition, Strategy};

/// Any strategy or composition for the model `M`, behind a pointer.
///
/// A composition such as `Stack<Stack<Identity, Amp>, Clip>` is its own type, and everything generic over it is
/// compiled again. The trainer boxes the composition once, at the start. For a list of strategies that is only known at
/// run time, use a `Vec<BoxedStrategy<M>>`.
///
/// ```
/// use burn::nn::Linear;
/// use firebrick_strategies::{Accumulate, BoxedStrategy, Clip};
///
/// let mut strategies: Vec<BoxedStrategy<Linear>> = vec![BoxedStrategy::new(Accumulate(4))];
/// strategies.push(BoxedStrategy::new(Clip::norm(1.0)));
/// assert_eq!(format!("{:?}", strategies[0]), "Accumulate(4)");
/// ```
pub struct BoxedStrategy<M: 'static>(Arc<dyn Composition<M>>);

impl<M: 'static> BoxedStrategy<M> {
    /// Erases the type of `strategy`.
    pub fn new(strategy: impl Composition<M>) -> Self {
        Self(Arc::new(strategy))
    }
}

impl<M: 'static> Composition<M> for BoxedStrategy<M> {
    fn strategies(&self) -> Vec<&dyn Strategy<M>> {
        self.0.strategies()
    }
}

impl<M: 'static> Clone for BoxedStrategy<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Prints the strategy itself.
impl<M: 'static> Debug for BoxedStrategy<M> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
