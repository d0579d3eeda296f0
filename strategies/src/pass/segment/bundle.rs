//! The inputs and outputs of a segment.

use burn::tensor::{Bool, Int, Tensor};
use firebrick_kernels::Reads;

/// A map over the tensors of a [`Bundle`].
pub trait TensorMap {
    /// Maps a float tensor.
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D>;

    /// Maps an integer tensor; unchanged by default.
    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        tensor
    }

    /// Maps a mask; unchanged by default.
    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        tensor
    }
}

/// The tensors that a segment reads or returns: a tensor, a tuple of up to six bundles, an option or a vector of
/// bundles, or the [`Reads`] of an attention.
///
/// Implement it for your own structure of tensors by mapping each tensor, always in the same order:
///
/// ```
/// use burn::tensor::{Int, Tensor};
/// use firebrick_strategies::{Bundle, TensorMap};
///
/// #[derive(Clone)]
/// struct Hidden {
///     states: Tensor<3>,
///     places: Tensor<2, Int>,
/// }
///
/// impl Bundle for Hidden {
///     fn map_tensors(self, map: &mut impl TensorMap) -> Self {
///         Self { states: self.states.map_tensors(map), places: self.places.map_tensors(map) }
///     }
/// }
/// ```
pub trait Bundle: Clone + Send + Sync + 'static {
    /// Maps each tensor of the structure, in an order that never changes.
    fn map_tensors(self, map: &mut impl TensorMap) -> Self;
}

impl<const D: usize> Bundle for Tensor<D> {
    fn map_tensors(self, map: &mut impl TensorMap) -> Self {
        map.float(self)
    }
}

impl<const D: usize> Bundle for Tensor<D, Int> {
    fn map_tensors(self, map: &mut impl TensorMap) -> Self {
        map.int(self)
    }
}

impl<const D: usize> Bundle for Tensor<D, Bool> {
    fn map_tensors(self, map: &mut impl TensorMap) -> Self {
        map.bool(self)
    }
}

/// The keys that queries read, which are known on the host.
impl Bundle for Reads {
    fn map_tensors(self, _: &mut impl TensorMap) -> Self {
        self
    }
}

impl<T: Bundle> Bundle for Option<T> {
    fn map_tensors(self, map: &mut impl TensorMap) -> Self {
        self.map(|bundle| bundle.map_tensors(map))
    }
}

impl<T: Bundle> Bundle for Vec<T> {
    fn map_tensors(self, map: &mut impl TensorMap) -> Self {
        self.into_iter().map(|bundle| bundle.map_tensors(map)).collect()
    }
}

macro_rules! bundle_of_tuple {
    ($($part:ident $index:tt),+) => {
        impl<$($part: Bundle),+> Bundle for ($($part,)+) {
            fn map_tensors(self, map: &mut impl TensorMap) -> Self {
                ($(self.$index.map_tensors(map),)+)
            }
        }
    };
}

bundle_of_tuple!(A 0);
bundle_of_tuple!(A 0, B 1);
bundle_of_tuple!(A 0, B 1, C 2);
bundle_of_tuple!(A 0, B 1, C 2, D 3);
bundle_of_tuple!(A 0, B 1, C 2, D 3, E 4);
bundle_of_tuple!(A 0, B 1, C 2, D 3, E 4, F 5);
