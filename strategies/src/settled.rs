//! What became of a window.

use std::fmt;

/// The outcome of a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The master was updated.
    Applied,
    /// The master was not updated.
    Skipped(SkipReason),
}

/// Why a window made no update.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SkipReason {
    /// A gradient was infinite or NaN; with a loss scale this is an overflow. The trainer skips such a window in every
    /// precision, by the norm of all gradients.
    NonFinite,
    /// The window has no supervised label, so there is nothing to learn from.
    NoItems,
    /// A strategy's own reason, as a phrase.
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
