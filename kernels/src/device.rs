//! The backend of a device.

use burn::tensor::Device;

/// Returns whether tensors on a device are Flex's, in host memory.
pub(crate) fn is_flex(device: &Device) -> bool {
    device.clone().inner() == Device::flex()
}

/// Returns whether tensors on a device belong to CubeCL, which compiles kernels.
#[cfg(feature = "cube")]
pub(crate) fn is_cube(device: &Device) -> bool {
    matches!(device.clone().inner().as_dispatch(), burn::backend::DispatchDevice::Cube(_))
}
