//! Tensors of dispatch as tensors of CubeCL's devices, and back.

use burn::backend::tensor::FloatTensor;
use burn::backend::{
    BackendTensor, Cube, DispatchDevice, DispatchKindConversion, DispatchTensor, TensorMetadata,
};
use burn::tensor::DType;

/// Returns whether the kernels compute these tensors: they compute in f32.
pub(crate) fn has_kernels<'a>(tensors: impl IntoIterator<Item = &'a DispatchTensor>) -> bool {
    let narrow = |x: &DispatchTensor| matches!(x.dtype(), DType::F32 | DType::F16 | DType::BF16);
    let mut tensors = tensors.into_iter().peekable();
    // Burn's operations say that tensors are on several devices.
    let Some(DispatchDevice::Cube(device)) = tensors.peek().map(|first| first.device()) else { return false };
    tensors.all(|x| narrow(x) && matches!(x.device(), DispatchDevice::Cube(other) if other == device))
}

/// Returns the tensors of the device.
///
/// # Panics
///
/// If the [kernels](has_kernels) don't compute them.
pub(crate) fn of_cube(tensors: Vec<DispatchTensor>) -> Vec<FloatTensor<Cube>> {
    let of_cube = |tensor| match <DispatchTensor as DispatchKindConversion<Cube>>::try_into_backend(tensor) {
        Ok(BackendTensor::Float(tensor)) => tensor,
        _ => unreachable!("the kernels compute float tensors of CubeCL's devices"),
    };
    tensors.into_iter().map(of_cube).collect()
}

/// Returns the tensors as those of dispatch.
pub(crate) fn into_dispatch(tensors: Vec<FloatTensor<Cube>>) -> Vec<DispatchTensor> {
    let into =
        |tensor| <DispatchTensor as DispatchKindConversion<Cube>>::from_backend(BackendTensor::Float(tensor));
    tensors.into_iter().map(into).collect()
}
