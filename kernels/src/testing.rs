//! The device of the tests.

use burn::tensor::{Device, FloatDType};

use crate::device::is_flex;

/// Returns the device that `BURN_DEVICE` names, as in the program `firebrick`, or the CPU by default.
pub fn device() -> Device {
    match std::env::var("BURN_DEVICE").as_deref() {
        Err(_) | Ok("cpu") => Device::flex(),
        // Burn reads the variable itself, and panics if the build lacks that backend.
        Ok(_) => Device::default(),
    }
}

/// Returns how many random cases a property has: fewer on a GPU, which a processor may play, since it compiles kernels
/// for almost every case.
pub fn cases(on_cpu: u32) -> proptest::test_runner::Config {
    let on_device = if is_flex(&device()) { on_cpu } else { on_cpu.div_ceil(8) };
    proptest::test_runner::Config::with_cases(on_device)
}

/// Returns those of the dtypes that the device of the tests computes in, each with what belongs to it, such as a
/// tolerance. The kernels for GPUs don't compute in f64, and wgpu offers bf16 and f64 that it computes wrongly on lavapipe.
pub fn computed<T, const N: usize>(dtypes: [(FloatDType, T); N]) -> Vec<(FloatDType, T)> {
    let device = device();
    let is_wgpu = std::env::var("BURN_DEVICE").is_ok_and(|name| name.starts_with("wgpu"));
    let offered = |dtype: FloatDType| match dtype {
        _ if is_flex(&device) => true,
        FloatDType::F64 => false,
        FloatDType::BF16 => !is_wgpu,
        _ => true,
    };
    dtypes.into_iter().filter(|(dtype, _)| offered(*dtype) && device.supports_dtype(*dtype)).collect()
}

/// Returns how far products of f32 may be from their values, as a share of the largest. On CUDA, tuning may take kernels
/// that round the operands to TF32; the variable `NVIDIA_TF32_OVERRIDE`, set to 0 as for NVIDIA's libraries, says that
/// nothing does.
pub fn rounding_of_f32_products() -> f64 {
    let is_cuda = std::env::var("BURN_DEVICE").is_ok_and(|name| name.starts_with("cuda"));
    let tf32 = std::env::var("NVIDIA_TF32_OVERRIDE").map_or(true, |value| value != "0");
    if is_cuda && tf32 { 2e-3 } else { 1e-5 }
}
