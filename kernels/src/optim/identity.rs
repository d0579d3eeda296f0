//! What tells a tensor from all others.

use burn::tensor::Tensor;

use super::slices::address;

/// A tensor's memory, or its place in the queue of operations: no other tensor has it as long as this one lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Identity {
    /// The address of its elements, on Flex.
    Address(usize),
    /// Its name among the tensors of operations that may still be queued.
    #[cfg(feature = "fusion")]
    Queued(burn::backend::fusion::custom::TensorId),
    /// Its memory on a device.
    #[cfg(all(feature = "cube", not(feature = "fusion")))]
    Memory(usize),
}

/// Returns a tensor's identity; `None` for an empty tensor, under autodiff, and on devices that no update runs on.
pub(super) fn identity<const D: usize>(tensor: &Tensor<D>) -> Option<Identity> {
    #[cfg(feature = "cube")]
    if !tensor.is_autodiff() {
        let tensor = [tensor.clone().into_dispatch()];
        if crate::cube::has_kernels(&tensor) {
            let tensor = crate::cube::of_cube(tensor.into()).remove(0);
            #[cfg(feature = "fusion")]
            return Some(Identity::Queued(tensor.id));
            #[cfg(not(feature = "fusion"))]
            return Some(Identity::Memory(tensor.handle.memory.binding().id().value));
        }
    }
    address(tensor).map(Identity::Address)
}
