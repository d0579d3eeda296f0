//! The device of the tests.

use burn::tensor::Device;

/// Returns the device that `BURN_DEVICE` names, as in the program `firebrick`, or the CPU by default.
pub fn device() -> Device {
    match std::env::var("BURN_DEVICE").as_deref() {
        Err(_) | Ok("cpu") => Device::flex(),
        // Burn reads the variable itself, and panics if the build lacks that backend.
        Ok(_) => Device::default(),
    }
}
