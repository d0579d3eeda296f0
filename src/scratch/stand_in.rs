//! Zeros that stand in for a value.

use burn::tensor::{DType, Device, Tensor};

/// Creates zeros that take no memory.
pub(super) fn stand_in<const D: usize>(
    shape: [usize; D],
    device: &Device,
    dtype: DType,
    is_trained: bool,
) -> Tensor<D> {
    let zero = Tensor::<D>::zeros([1; D], (&device.clone().inner(), dtype));
    let zeros = lifted(zero.expand(shape), device);
    if device.is_autodiff() { zeros.set_require_grad(is_trained) } else { zeros }
}

/// Puts a value outside autodiff on a device that may be one of autodiff.
pub(super) fn lifted<const D: usize>(value: Tensor<D>, device: &Device) -> Tensor<D> {
    match device.gradient_checkpointing_strategy() {
        None => value,
        Some(strategy) => Tensor::from_inner(value).with_gradient_checkpointing_strategy(strategy),
    }
}
