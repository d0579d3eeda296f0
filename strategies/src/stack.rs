//! Composition of strategies: a pair, none, an optional one, and a list.

use crate::{BoxedStrategy, Composition, Strategy};

/// A strategy that changes nothing.
#[derive(Clone, Debug, Default)]
pub struct Identity;

impl<M: 'static> Composition<M> for Identity {
    fn strategies(&self) -> Vec<&dyn Strategy<M>> {
        Vec::new()
    }
}

/// Two strategies, in the order in which gradients pass through them.
#[derive(Clone, Debug)]
pub struct Stack<A, B> {
    first: A,
    then: B,
}

impl<A, B> Stack<A, B> {
    /// Composes `first` and `then`, in this order.
    pub fn new(first: A, then: B) -> Self {
        Self { first, then }
    }
}

impl<M: 'static, A: Composition<M>, B: Composition<M>> Composition<M> for Stack<A, B> {
    fn strategies(&self) -> Vec<&dyn Strategy<M>> {
        let Self { first, then } = self;
        [first.strategies(), then.strategies()].concat()
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

/// The strategies of a trainer: [`Stack`]s on [`Identity`], as its `with` makes them, or a [`BoxedStrategy`].
///
/// If a type is not a strategy, the compiler names that type and not the whole stack:
///
/// ```compile_fail,E0277
/// use burn::nn::Linear;
/// use firebrick_strategies::{Accumulate, Composed, Identity, Stack};
///
/// fn trains<S: Composed<Linear>>(_: S) {}
///
/// trains(Stack::new(Stack::new(Identity, Accumulate(2)), "Clip")); // error[E0277]: `&str` is not a training strategy
/// ```
pub trait Composed<M: 'static>: Composition<M> {}

impl<M: 'static> Composed<M> for Identity {}

impl<M: 'static, A: Composed<M>, B: Composition<M>> Composed<M> for Stack<A, B> {}

impl<M: 'static> Composed<M> for BoxedStrategy<M> {}
