//! The device of the tests.

use burn::tensor::Device;

/// The device that `BURN_DEVICE` names, as for the program `firebrick`; the CPU if it is not set.
pub(crate) fn device() -> Device {
    match std::env::var("BURN_DEVICE").as_deref() {
        Err(_) | Ok("cpu") => Device::flex(),
        // Burn reads the variable itself, and panics if the build lacks that backend.
        Ok(_) => Device::default(),
    }
}
