//! Whether the gradients of a micro-batch are applied, held or skipped, and whether a step made an update.

use std::fmt;

use super::Grads;

/// The decision of a stage, or of the whole composition, about the gradients of a micro-batch.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one per micro-batch; a box would buy nothing")]
pub enum Outcome {
    /// Pass the gradients on; at the end of the composition, update the master with them.
    Apply(Grads),
    /// The optimizer step is not complete; the stage keeps the gradients.
    Hold,
    /// Make no update in this step. Parameters, moments, schedule and step counter stay as they are; the skip is
    /// counted and shown. Later stages still take part in the step, but receive empty gradients: a stage may skip at
    /// any micro-batch. A stage may skip on a single rank, and then all ranks do, until it or a stage before it asks for
    /// the norm of the step: with the norm, the ranks agree on whether to skip. After that, the stage must decide alike on
    /// every rank, for example by the norm, which is the same on all ranks. If it does not, the run ends with an error.
    Skip(SkipReason),
}

/// The outcome of an optimizer step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The master was updated.
    Applied,
    /// The master was not updated.
    Skipped(SkipReason),
}

/// Why an optimizer step made no update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// A gradient was infinite or NaN; with a loss scale this is an overflow. The trainer skips such a step in every
    /// precision, by the norm of all gradients.
    NonFinite,
    /// The step has no supervised label, so there is nothing to learn from.
    NoItems,
    /// A strategy's own reason, as a phrase.
    Other(String),
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NonFinite => f.write_str("a gradient was infinite or not a number"),
            Self::NoItems => f.write_str("the step has no supervised item"),
            Self::Other(why) => f.write_str(why),
        }
    }
}
