//! The backend of a device.

use burn::tensor::Device;

/// Returns whether tensors on a device are Flex's, in host memory.
pub(crate) fn is_flex(device: &Device) -> bool {
    device.clone().inner() == Device::flex()
}
