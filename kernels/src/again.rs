//! Operations whose results the backward pass computes again, because that is cheaper than the memory that keeps them.
//!
//! Burn can drop the result of an operation that it calls memory-bound, and compute it again from the operation's inputs
//! when a gradient reads it. It does so for the operations of an autodiff device with that strategy, which is what
//! `Recompute::elementwise` of `firebrick-strategies` selects. On the CPU, activations and norms of this crate
//! are always memory-bound: they are one pass over memory, and a linear layer after them would keep their result, four
//! times as wide as a block's input for an activation. On GPUs, where launches and memory traffic cost more beside
//! products, only the strategy runs them again.

use std::any::TypeId;

use burn::backend::{Backend, Flex};

/// Returns whether a backend computes these results again without being asked.
pub fn is_cheap<B: Backend>() -> bool {
    TypeId::of::<B>() == TypeId::of::<Flex>()
}
