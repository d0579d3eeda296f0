//! Errors of a world and its ranks.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// An error in joining a world or in a call between its ranks.
///
/// After [`Rank`](WorldError::Rank), [`Deadline`](WorldError::Deadline), [`Mismatch`](WorldError::Mismatch)
/// or [`Mpi`](WorldError::Mpi) the world is over: every later call of every rank returns that error
/// immediately. The other errors are one rank's own mistakes, found before it sent anything.
#[derive(Clone, Debug, Error, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum WorldError {
    /// A rank failed, panicked, or ended while the others continued.
    #[error("rank {rank} {reason}; this rank was in {call}")]
    Rank {
        /// The rank that failed.
        rank: usize,
        /// The call that this rank was in or made next.
        call: String,
        /// What happened to that rank: `failed: ..`, `panicked`, `has ended`.
        reason: String,
    },
    /// Ranks did not arrive at a call within the deadline.
    #[error("within {limit:?} {missing} did not arrive at {call}{}: {}", last_seen(seen), LATE, missing = named(ranks))]
    Deadline {
        /// The ranks that did not arrive.
        ranks: Vec<usize>,
        /// The call of the rank that gave up.
        call: String,
        /// The deadline.
        limit: Duration,
        /// The last known call of each of `ranks`, if any.
        seen: Vec<Option<String>>,
    },
    /// Two ranks are in different calls.
    #[error(
        "the ranks are in different calls: rank {rank} is in {call}, rank {other} in {found}; every rank must make the same calls in \
         the same order, so no strategy, objective or callback may skip a call because of what one rank alone knows"
    )]
    Mismatch {
        /// A rank.
        rank: usize,
        /// The call it is in.
        call: String,
        /// Another rank.
        other: usize,
        /// The call that the other rank is in.
        found: String,
    },
    /// A world of no ranks.
    #[error("a world needs at least one rank, found {0}")]
    Size(usize),
    /// The world has no such rank.
    #[error("{call}: root must be one of the {size} ranks, found {root}")]
    Root {
        /// The call.
        call: String,
        /// The requested root.
        root: usize,
        /// The number of ranks.
        size: usize,
    },
    /// A tensor whose shape does not fit the call.
    #[error("{call}: expected {expected}, found {found}")]
    Shape {
        /// The call.
        call: String,
        /// What the call expects.
        expected: String,
        /// What the caller passed.
        found: String,
    },
    /// The dtype cannot be summed.
    #[error("{call}: tensors are summed in f64, f32, f16 or bf16, found {found}")]
    Dtype {
        /// The call.
        call: String,
        /// The dtype that the caller passed.
        found: String,
    },
    /// A tensor could not be read from its device.
    #[error("{call}: the tensor could not be read from its device: {reason}")]
    Read {
        /// The call.
        call: String,
        /// The device's error.
        reason: String,
    },
    /// A [link](crate::Link) that carries nothing.
    #[error("a link of {0} bytes per second: it must carry at least 1 byte per second")]
    Link(String),
    /// MPI is missing or failed.
    #[error("MPI: {0}")]
    Mpi(String),
}

/// Advice on late ranks.
const LATE: &str = "check its log and its machine; raise the deadline if it is only slow";

fn named(ranks: &[usize]) -> String {
    let ranks: Vec<_> = ranks.iter().map(usize::to_string).collect();
    let s = if ranks.len() == 1 { "" } else { "s" };
    format!("rank{s} {}", ranks.join(", "))
}

fn last_seen(seen: &[Option<String>]) -> String {
    let known: Vec<_> = seen.iter().flatten().map(String::as_str).collect();
    if known.is_empty() { String::new() } else { format!(" (last seen in {})", known.join("; in ")) }
}
