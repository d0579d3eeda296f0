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

/// Returns how many random cases a property has: fewer on `wgpu`, which a processor may play, since it compiles kernels
/// for almost every case.
pub fn cases(on_cpu: u32) -> proptest::test_runner::Config {
    let is_wgpu = std::env::var("BURN_DEVICE").is_ok_and(|name| name.starts_with("wgpu"));
    proptest::test_runner::Config::with_cases(if is_wgpu { on_cpu.div_ceil(8) } else { on_cpu })
}
