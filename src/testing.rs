//! The device of the tests.

use burn::tensor::Device;

/// The device that `BURN_DEVICE` names, as for the program; the CPU where it is not set.
pub fn device() -> Device {
    let name = std::env::var("BURN_DEVICE").unwrap_or("cpu".into());
    crate::device::find(&name).unwrap_or_else(|error| panic!("BURN_DEVICE: {error}")).0
}
