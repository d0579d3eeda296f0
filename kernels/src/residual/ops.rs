//! Sums as operations of a backend.

use std::sync::Arc;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};

#[cfg(feature = "cube")]
use crate::dropout::cube;
use crate::dropout::{DropMask, Dropping};

/// The sums of a backend, without gradients. The defaults are Burn's own operations.
pub trait Sums: Dropping {
    /// Returns `x + y`, of one shape and dtype.
    fn sum(x: FloatTensor<Self>, y: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_add(x, y)
    }

    /// Returns `x` plus `y` with some of its elements dropped.
    fn sum_with_dropped(
        x: FloatTensor<Self>,
        y: FloatTensor<Self>,
        mask: Arc<DropMask>,
    ) -> FloatTensor<Self> {
        Self::float_add(x, Self::dropped(y, &mask))
    }
}

/// Sums with gradients.
///
/// Call [`add`](super::add) and [`add_dropout`](super::add_dropout), which take tensors. On backends outside this
/// crate's features, they panic.
#[backend_extension(
    Flex,
    Cube: cfg(feature = "cube"),
    Autodiff,
)]
pub trait ResidualOps: Backend {
    /// Returns `x + y`, of one shape and dtype.
    fn own_sum(x: FloatTensor<Self>, y: FloatTensor<Self>) -> FloatTensor<Self>;

    /// Returns `x` plus `y` with some of its elements dropped.
    fn own_sum_with_dropped(
        x: FloatTensor<Self>,
        y: FloatTensor<Self>,
        mask: Arc<DropMask>,
    ) -> FloatTensor<Self>;
}

macro_rules! without_gradients {
    ($backend:ty) => {
        impl ResidualOps for $backend {
            fn own_sum(x: FloatTensor<Self>, y: FloatTensor<Self>) -> FloatTensor<Self> {
                Self::sum(x, y)
            }

            fn own_sum_with_dropped(
                x: FloatTensor<Self>,
                y: FloatTensor<Self>,
                mask: Arc<DropMask>,
            ) -> FloatTensor<Self> {
                Self::sum_with_dropped(x, y, mask)
            }
        }
    };
}

#[cfg(feature = "cube")]
impl Sums for burn::backend::Cube {
    fn sum_with_dropped(
        x: FloatTensor<Self>,
        y: FloatTensor<Self>,
        mask: Arc<DropMask>,
    ) -> FloatTensor<Self> {
        cube::dropped_onto(x, y, &mask)
    }
}
#[cfg(feature = "cube")]
without_gradients!(burn::backend::Cube);
without_gradients!(burn::backend::Flex);
