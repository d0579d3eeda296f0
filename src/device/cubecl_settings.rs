//! Sets how CubeCL tunes kernels and where it keeps them. CubeCL reads its settings once, at the first use of a GPU.

use std::env;
use std::sync::Once;

use cubecl::config::autotune::{AutotuneConfig, AutotuneLevel};
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig};

use super::tuning::{self, Tuning};

/// Applies the settings, at the first call. The user's own settings have precedence: a file that CubeCL reads replaces
/// all of these, and its environment variables replace single ones.
pub(super) fn apply() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let level = match tuning::settled() {
            Tuning::Quick => AutotuneLevel::Minimal,
            Tuning::Balanced => AutotuneLevel::Balanced,
            Tuning::Full => AutotuneLevel::Full,
        };
        if has_own_file() {
            return;
        }
        let autotune = AutotuneConfig { level, ..AutotuneConfig::default() };
        let config = CubeClRuntimeConfig { autotune, ..CubeClRuntimeConfig::default() };
        #[cfg(feature = "persistence")]
        let (config, keeps) = super::kept_kernels::keeping(config);
        // Fails if the program has used a GPU before: then CubeCL has read the settings already.
        let applied = CubeClRuntimeConfig::try_set(config.override_from_env());
        #[cfg(feature = "persistence")]
        super::kept_kernels::begin(keeps && applied);
        #[cfg(not(feature = "persistence"))]
        let _ = applied;
    });
}

/// Whether the working directory or one above it has a file of settings that CubeCL reads.
fn has_own_file() -> bool {
    let Ok(folder) = env::current_dir() else { return false };
    folder.ancestors().any(|folder| {
        let whole = CubeClRuntimeConfig::file_names().iter();
        let mut whole = whole.map(|name| CubeClRuntimeConfig::from_file_path(folder.join(name)));
        let parts = CubeClRuntimeConfig::section_file_names().iter();
        let mut parts = parts
            .map(|(name, section)| CubeClRuntimeConfig::from_section_file_path(folder.join(name), section));
        whole.any(|read| read.is_ok()) || parts.any(|read| read.is_ok())
    })
}
