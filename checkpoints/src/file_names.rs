//! The names of files and folders: of each, one spelling.

use std::fmt;

/// The most ranks that a checkpoint can be of: their numbers have five digits.
pub(crate) const MAX_RANKS: usize = 99_999;

/// The manifest's file.
pub(crate) const MANIFEST: &str = "manifest.json";
/// The trainer's file.
pub(crate) const TRAINER: &str = "trainer.ron";
/// The file that names the newest checkpoint, and the one that becomes it.
pub(crate) const LATEST: &str = "latest";
pub(crate) const STAGED_LATEST: &str = ".staged-latest";
/// A folder that is being written.
pub(crate) const STAGING: &str = ".staging-";
/// A checkpoint that one of the same step takes the place of.
pub(crate) const REPLACED: &str = ".replaced-";
/// A checkpoint that is being removed.
pub(crate) const REMOVED: &str = ".removed-";

/// What a rank's file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Holds {
    Average,
    Optimizer,
    Parameters,
}

impl fmt::Display for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Average => "average",
            Self::Optimizer => "optimizer",
            Self::Parameters => "parameters",
        })
    }
}

/// The name of a rank's file.
pub(crate) fn rank_file(holds: Holds, rank: usize, ranks: usize) -> String {
    format!("{holds}-{rank:05}-of-{ranks:05}.safetensors")
}

/// The name of a step's folder.
pub(crate) fn step_folder(step: u64) -> String {
    format!("step-{step:08}")
}

/// The step of a folder of this name.
pub(crate) fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix("step-")?.parse().ok()?;
    (step_folder(step) == name).then_some(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_has_one_name() {
        for step in [0, 1, 1000, 99_999_999, 100_000_000, u64::MAX] {
            assert_eq!(step_of(&step_folder(step)), Some(step));
        }
        for name in
            ["step-1", "step-+0000001", "step-000000001", "step-", "Step-00000001", "step-00000001.bak"]
        {
            assert_eq!(step_of(name), None, "{name}");
        }
    }
}
