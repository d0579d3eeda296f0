//! The device of the tests.

use burn::tensor::Device;

/// The device that `BURN_DEVICE` names, as for the program `firebrick`; the CPU where it is not set.
pub fn device() -> Device {
    match std::env::var("BURN_DEVICE").as_deref() {
        Err(_) | Ok("cpu") => Device::flex(),
        // Burn reads the variable itself, and panics where that backend is not part of the build.
        Ok(_) => Device::default(),
    }
}
