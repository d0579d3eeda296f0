//! The names of files and folders, each with a single spelling.

use std::fmt;

/// The maximum number of ranks, limited by five-digit rank numbers.
pub(crate) const MAX_RANKS: usize = 99_999;

/// The manifest's file.
pub(crate) const MANIFEST: &str = "manifest.json";
/// The trainer's file: its state as JSON.
pub const TRAINER: &str = "trainer.json";
/// The trainer's file in formats 1 and 2: its state in [RON](https://docs.rs/ron).
pub const TRAINER_IN_RON: &str = "trainer.ron";
/// The file that names the newest checkpoint, and the staged file that replaces it.
pub(crate) const LATEST: &str = "latest";
pub(crate) const STAGED_LATEST: &str = ".staged-latest";
/// The prefix of a folder being written.
pub(crate) const STAGING: &str = ".staging-";
/// The prefix of a checkpoint that another of the same step replaces.
pub(crate) const REPLACED: &str = ".replaced-";
/// The prefix of a checkpoint being removed.
pub(crate) const REMOVED: &str = ".removed-";

/// Returns the name of the trainer's file in a format.
pub(crate) fn trainer_file(format: u32) -> &'static str {
    if format < 3 { TRAINER_IN_RON } else { TRAINER }
}

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

/// Returns the name of a rank's file.
pub(crate) fn rank_file(holds: Holds, rank: usize, ranks: usize) -> String {
    format!("{holds}-{rank:05}-of-{ranks:05}.safetensors")
}

/// Returns the name of a step's folder.
pub(crate) fn step_folder(step: u64) -> String {
    format!("step-{step:08}")
}

/// Parses the step from a folder's name.
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
