//! The settings of imported optimizers, and their ranges.

use firebrick_strategies::optim::Optimizers;

use super::Outcome;
use super::draft::Item;
use super::inputs::{Known, shown};

/// An optimizer and its learning rate.
#[derive(Debug)]
pub(super) struct Optimizer {
    pub item: Item,
    /// The rate, if it is given. A schedule may have its own.
    pub rate: Option<Known<f64>>,
    /// Whether the optimizer has `betas`, which DeepSpeed's `OneCycle` changes.
    pub has_betas: bool,
}

pub(super) type Range = (&'static str, fn(f64) -> bool);

pub(super) const RATE: Range = ("above 0", |rate| rate > 0.0);
// Run files store these as f32.
pub(super) const DECAY: Range = ("at least 0", |decay| decay >= 0.0 && (decay as f32).is_finite());
pub(super) const EPSILON: Range = ("above 0", |epsilon| epsilon as f32 > 0.0 && (epsilon as f32).is_finite());
pub(super) const AT_LEAST_ZERO: Range = ("at least 0", |number| number >= 0.0);
/// A share.
pub(super) const SHARE: Range = ("at least 0 and at most 1", |share| (0.0..=1.0).contains(&share));
pub(super) const MOMENTUM: Range = ("at least 0 and below 1", within_one);

pub(super) fn within_one(beta: f64) -> bool {
    beta >= 0.0 && (beta as f32) < 1.0
}

/// The message for an optimizer that cannot update shards, although ZeRO would require it.
pub(super) const SHARDED: &str =
    "AdamW, or no stage of ZeRO: an update depends on the whole parameter, of which ranks would have shards";

/// Formats two numbers as in a run file.
pub(super) fn pair([first, second]: [f64; 2]) -> String {
    format!("({}, {})", shown(first), shown(second))
}

/// Returns the outcome of an optimizer that run files do not know.
pub(super) fn unknown() -> Outcome {
    let names = Optimizers::installed().names().join(", ");
    Outcome::refused(format!("one of {names}, with its own learning rate"))
}
