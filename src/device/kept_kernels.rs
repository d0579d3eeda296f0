//! Keeps compiled kernels and the results of tuning in the [folder](kernel_cache) for them.

use std::env;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Once, OnceLock};

use burn::tensor::Device;
use cubecl::config::CubeClRuntimeConfig;
use cubecl::config::cache::CacheConfig;
use cubecl::environment;
use cubecl::records::RecordLevel;
use tracing::warn;

use super::kernel_cache;
use super::tuning;

/// Whether CubeCL keeps kernels in the folder.
static KEEPS: AtomicBool = AtomicBool::new(false);

/// The line about the first start on this GPU, if this is it.
static FIRST_START: OnceLock<String> = OnceLock::new();

/// Returns the settings with the folder, and whether it can be used. If it cannot, prints a warning, and CubeCL keeps
/// nothing on disk.
pub(super) fn keeping(mut config: CubeClRuntimeConfig) -> (CubeClRuntimeConfig, bool) {
    config.environment.records.level = RecordLevel::Off;
    match kernel_cache::folder().and_then(kernel_cache::made) {
        Ok(folder) => {
            // Kernels are kept under their names and the build's ID. Without an ID, those of an older build would run.
            config.compilation.cache = buildid::build_id().is_some();
            config.environment.path = CacheConfig::Directory(folder);
            config.environment.name = kernel_cache::unopened();
            (config, true)
        }
        Err(error) => {
            warn!("kernels are compiled and tuned again at each start: {error}");
            config.autotune.disable_cache = true;
            config.throughput.disable_cache = true;
            (config, false)
        }
    }
}

/// Records whether CubeCL has taken the settings.
pub(super) fn begin(keeps: bool) {
    KEEPS.store(keeps, Relaxed);
}

/// Selects the file of this GPU, at the first call; CubeCL tells GPUs of one process apart by their numbers. Opens the
/// GPU.
pub(super) fn select_file_of(device: &Device) {
    static ONCE: Once = Once::new();
    // A user who names an environment of CubeCL gets it.
    if !KEEPS.load(Relaxed) || env::var_os("CUBECL_ENVIRONMENT").is_some() {
        return;
    }
    ONCE.call_once(|| {
        // If the driver fails, this panics as the first use would.
        let opened = catch_unwind(AssertUnwindSafe(|| device.identity()));
        let Ok(Some(identity)) = opened else { return };
        let (hardware, driver) = (identity.name, nvidia_driver());
        environment::activate(kernel_cache::file_stem(&hardware, driver.as_deref(), tuning::settled()));
        let file = environment::path();
        if !file.exists() {
            let folder = file.parent().unwrap_or(&file).display().to_string();
            let line = format!(
                "first start on {hardware}: kernels are compiled and tuned, which may take minutes; later starts \
                 read them from {folder}"
            );
            let _ = FIRST_START.set(line);
        }
    });
}

/// The version of NVIDIA's driver, if the machine has it. Its kernel module reports it, in containers too.
fn nvidia_driver() -> Option<String> {
    let module = || Some(fs::read_to_string("/sys/module/nvidia/version").ok()?.trim().to_string());
    module().or_else(|| version_in(&fs::read_to_string("/proc/driver/nvidia/version").ok()?))
}

/// The first word that is a version: `NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue ..`.
fn version_in(text: &str) -> Option<String> {
    let is_version = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    text.split_whitespace().find(is_version).map(str::to_string)
}

/// Returns the line about the first start on this GPU, if this is it.
pub(super) fn first_start() -> Option<String> {
    FIRST_START.get().cloned()
}

/// Returns the numbers of compiled kernels and of tuned operations.
pub(super) fn compiled() -> Option<(u64, u64)> {
    if !KEEPS.load(Relaxed) {
        return None;
    }
    let namespaces = environment::namespaces();
    // The first word of a namespace says what it has, as in `cuda/0.11.3/ptx_sm90-cpp`.
    let entries = |kinds: &[&str]| -> u64 {
        let kind = |namespace: &str| namespace.split('/').next().is_some_and(|kind| kinds.contains(&kind));
        namespaces.iter().filter(|held| kind(&held.namespace)).map(|held| held.entries).sum()
    };
    Some((entries(&["cuda", "vulkan"]), entries(&["autotune"])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_a_driver_is_read_from_its_report() {
        let report =
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n";
        assert_eq!(version_in(report), Some("550.54.15".into()));
        assert_eq!(version_in("no driver"), None);
    }
}
