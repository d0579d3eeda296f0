//! What happens to gradients.

use crate::{Grads, SkipReason};

/// The decision of a stage, or of the whole composition, about the gradients of a micro-batch.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there is one per micro-batch; a box would buy nothing")]
pub enum Outcome {
    /// Pass the gradients on; at the end of the composition, update the master with them.
    Apply(Grads),
    /// The window is not complete; the stage keeps the gradients.
    Hold,
    /// Make no update from this window. Parameters, moments, schedule and step counter stay as they are; the skip is
    /// counted and shown. Later stages still take part in the window, but receive empty gradients: a stage may skip at
    /// any micro-batch. A stage may skip on a single rank, and then all ranks do, until it or a stage before it asks for
    /// the norm of the window: with the norm, the ranks agree on whether to skip. After that, the stage must decide alike on
    /// every rank, for example by the norm, which is the same on all ranks. If it does not, the run ends with an error.
    Skip(SkipReason),
}
