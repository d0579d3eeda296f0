//! The kernels of a GPU before the first step: CubeCL compiles them when they are first used, and tunes some.

use burn::tensor::Device;

use super::is_cube;

/// What is compiled and tuned so far on this GPU, earlier starts included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompiledKernels {
    /// Compiled kernels. Kernels in WGSL are not counted: the driver compiles them.
    pub kernels: u64,
    /// Tuned operations, each for its shapes.
    pub tuned: u64,
}

/// Whether kernels are compiled for this device when they are first used, as on all GPUs.
pub fn are_compiled_for(device: &Device) -> bool {
    is_cube(&device.clone().inner())
}

/// Returns a line for the user if no kernels are kept for the GPU that was [found](super::find). `None` if some are, on
/// the CPU, or if kernels are not kept.
pub fn first_start() -> Option<String> {
    #[cfg(all(feature = "cube", feature = "persistence"))]
    return super::kept_kernels::first_start();
    #[cfg(not(all(feature = "cube", feature = "persistence")))]
    None
}

/// Counts what is compiled and tuned. `None` if kernels are not kept.
pub fn compiled() -> Option<CompiledKernels> {
    #[cfg(all(feature = "cube", feature = "persistence"))]
    return super::kept_kernels::compiled().map(|(kernels, tuned)| CompiledKernels { kernels, tuned });
    #[cfg(not(all(feature = "cube", feature = "persistence")))]
    None
}

/// Sets how kernels are tuned and kept, before the first use of a GPU.
pub(super) fn prepare() {
    #[cfg(feature = "cube")]
    super::cubecl_settings::apply();
}

/// Starts a device that is present. Call it before anything else uses the device.
pub(super) fn start(device: &Device) {
    // If the driver fails, the first use of the device panics, and says why.
    #[cfg(feature = "cuda")]
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| super::without_tma::start(device)));
    #[cfg(not(feature = "cuda"))]
    let _ = device;
}

/// Starts a device that is present, and selects where its kernels are kept.
pub(super) fn keep_for(device: &Device) {
    start(device);
    #[cfg(all(feature = "cube", feature = "persistence"))]
    if is_cube(device) {
        super::kept_kernels::select_file_of(device);
    }
}
