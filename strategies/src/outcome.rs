//! What becomes of gradients.

use std::fmt;

use crate::Grads;

/// What a stage, or the whole composition, decided about the gradients that it was given.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one per micro-batch; a box would buy nothing")]
pub enum Outcome {
    /// Pass them on; at the end of the composition: update the master with them.
    Apply(Grads),
    /// The window is not complete; the stage keeps them.
    Hold,
    /// Make no update from this window. Parameters, moments, schedule and step counter stay as
    /// they are; the skip is counted and shown. The stages behind still take part in the window,
    /// with nothing to add: a stage may skip at any micro-batch. Before `Zero`, one rank may skip, and all do;
    /// behind it each stage must decide alike on every rank, as from the norm, which all have.
    Skip(SkipReason),
}

/// What became of a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The master was updated.
    Applied,
    /// Nothing was.
    Skipped(SkipReason),
}

/// Why a window made no update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// A gradient was infinite or not a number: an overflow, where the loss is scaled. The trainer skips such a
    /// window in every precision, by the norm of all gradients.
    NonFinite,
    /// No label of the window is supervised, so there is nothing to learn from.
    NoItems,
    /// A reason of the strategy's own, as a phrase.
    Other(String),
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NonFinite => f.write_str("a gradient was infinite or not a number"),
            Self::NoItems => f.write_str("the window has no supervised item"),
            Self::Other(why) => f.write_str(why),
        }
    }
}
