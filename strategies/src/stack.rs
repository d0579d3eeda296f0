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

/// [`Stack`]s on [`Identity`], one strategy on top of the other: what a trainer's `with` makes.
///
/// Anything that is no strategy is named by the compiler, without the strategies around it:
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
