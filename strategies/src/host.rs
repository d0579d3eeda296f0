//! The host, for a strategy that keeps tensors there.

use burn::tensor::Device;
use firebrick_world::host_device;

use crate::StrategyError;

/// Returns the host, or an error that names the strategy if the program lacks the CPU backend.
pub fn host(strategy: &'static str) -> Result<Device, StrategyError> {
    host_device().ok_or(StrategyError::NoHost(strategy))
}
