//! How thoroughly a process tunes the kernels of its GPUs.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};
use tracing::warn;

/// How thoroughly a process tunes kernels. Several kernels can compute the same operation, and which one is the fastest
/// depends on the shapes and on the device. At the first use of an operation the candidates run in turns, and the
/// fastest one is kept, in the [kernel cache](super::kernel_cache) too.
///
/// The CPU backend tunes nothing.
///
/// ```
/// use firebrick::device::Tuning;
///
/// assert_eq!("quick".parse(), Ok(Tuning::Quick));
/// assert_eq!(Tuning::default(), Tuning::Balanced);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Tuning {
    /// Takes the first candidate that reaches about 60% of the device's peak, and tunes similar shapes as one. It
    /// starts soonest.
    Quick,
    /// Takes the first candidate that reaches about 80% of the device's peak, as CubeCL does by default.
    #[default]
    Balanced,
    /// Tries every candidate, for each shape. It starts latest.
    Full,
}

/// The levels, by the names that the command line has.
const LEVELS: [(&str, Tuning); 3] =
    [("quick", Tuning::Quick), ("balanced", Tuning::Balanced), ("full", Tuning::Full)];

impl FromStr for Tuning {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = LEVELS.iter().find(|(name, _)| *name == text);
        known
            .map(|(_, tuning)| *tuning)
            .ok_or_else(|| format!("expected quick, balanced or full, found `{text}`"))
    }
}

impl Display for Tuning {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let name = LEVELS.iter().find(|(_, tuning)| tuning == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

/// The tuning of this process.
static CHOSEN: OnceLock<Tuning> = OnceLock::new();

/// Sets how thoroughly this process tunes kernels. Call it before you look for a device: CubeCL reads the setting once.
/// The first call counts, and a later one with another level only prints a warning.
///
/// A `cubecl.toml`, a `burn.toml` with a section `cubecl`, and the variable `CUBECL_AUTOTUNE_LEVEL` have precedence.
pub fn set_tuning(tuning: Tuning) {
    let chosen = *CHOSEN.get_or_init(|| tuning);
    if chosen != tuning {
        warn!("this process already tunes kernels with level {chosen}: {tuning} has no effect");
    }
}

/// The level that counts from here on.
#[cfg(feature = "cube")]
pub(super) fn settled() -> Tuning {
    *CHOSEN.get_or_init(Tuning::default)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_names() {
        for (name, tuning) in LEVELS {
            assert_eq!((name.parse::<Tuning>(), tuning.to_string()), (Ok(tuning), name.to_string()));
        }
        assert_eq!("fast".parse::<Tuning>(), Err("expected quick, balanced or full, found `fast`".into()));
    }
}
