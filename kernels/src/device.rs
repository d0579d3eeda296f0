//! The backend of a device.

use burn::tensor::Device;

/// Returns whether tensors on a device are Flex's, in host memory.
pub(crate) fn is_flex(device: &Device) -> bool {
    #[cfg(feature = "flex")]
    return device.clone().inner() == Device::flex();
    #[cfg(not(feature = "flex"))]
    {
        let _ = device;
        false
    }
}
