//! The host's memory, as a device.

use burn::tensor::Device;

use crate::StrategyError;

/// The host, for a strategy that keeps something there.
pub(crate) fn host(strategy: &'static str) -> Result<Device, StrategyError> {
    #[cfg(feature = "flex")]
    {
        let _ = strategy;
        Ok(Device::flex())
    }
    #[cfg(not(feature = "flex"))]
    Err(StrategyError::NoHost(strategy))
}

/// Whether a device is the host.
pub fn is_host(device: &Device) -> bool {
    #[cfg(feature = "flex")]
    return device.clone().inner() == Device::flex();
    #[cfg(not(feature = "flex"))]
    {
        let _ = device;
        false
    }
}
