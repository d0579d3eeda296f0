//! What can go wrong between ranks.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A world that cannot be joined, or a call among its ranks that cannot complete.
///
/// After [`Rank`](WorldError::Rank), [`Deadline`](WorldError::Deadline), [`Mismatch`](WorldError::Mismatch)
/// or [`Mpi`](WorldError::Mpi) the world is over: every later call of every rank ends with that error, at
/// once. The others are one rank's own mistakes, found before anything was sent.
#[derive(Clone, Debug, Error, PartialEq, Serialize, Deserialize)]
pub enum WorldError {
    /// A rank failed, panicked, or ended while the others went on.
    #[error("rank {rank} {reason}; this rank was in {call}")]
    Rank {
        /// The rank that failed.
        rank: usize,
        /// The call that this rank was in, or made after it.
        call: String,
        /// What became of that rank: `failed: ..`, `panicked`, `has ended`.
        reason: String,
    },
    /// Ranks did not arrive at a call within the deadline.
    #[error("within {limit:?} {missing} did not arrive at {call}{}: {}", last_seen(seen), LATE, missing = named(ranks))]
    Deadline {
        /// The ranks that did not arrive.
        ranks: Vec<usize>,
        /// The call that the rank which gave up was in.
        call: String,
        /// The deadline.
        limit: Duration,
        /// For each of `ranks`, the last call that it was seen in, where one is known.
        seen: Vec<Option<String>>,
    },
    /// Two ranks are in different calls.
    #[error(
        "the ranks are in different calls: rank {rank} is in {call}, rank {other} in {found}; every rank must make the same calls in the same order"
    )]
    Mismatch {
        /// A rank.
        rank: usize,
        /// The call that it is in.
        call: String,
        /// Another rank.
        other: usize,
        /// The call that the other rank is in.
        found: String,
    },
    /// A world of no ranks.
    #[error("a world needs at least one rank, found {0}")]
    Size(usize),
    /// A rank that the world does not have.
    #[error("{call}: root must be one of the {size} ranks, found {root}")]
    Root {
        /// The call.
        call: String,
        /// The root that was named.
        root: usize,
        /// The number of ranks.
        size: usize,
    },
    /// A tensor whose shape does not fit the call.
    #[error("{call}: expected {expected}, found {found}")]
    Shape {
        /// The call.
        call: String,
        /// What it takes.
        expected: String,
        /// What it was given.
        found: String,
    },
    /// A dtype that cannot be summed.
    #[error("{call}: tensors are summed in f64, f32, f16 or bf16, found {found}")]
    Dtype {
        /// The call.
        call: String,
        /// The dtype that it was given.
        found: String,
    },
    /// A tensor that could not be read from its device.
    #[error("{call}: the tensor could not be read from its device: {reason}")]
    Read {
        /// The call.
        call: String,
        /// What the device said.
        reason: String,
    },
    /// MPI is missing, or failed.
    #[error("MPI: {0}")]
    Mpi(String),
}

/// What to do about a rank that is late.
const LATE: &str = "look at its log and at its machine; raise the deadline if it is only slow";

fn named(ranks: &[usize]) -> String {
    let ranks: Vec<_> = ranks.iter().map(usize::to_string).collect();
    let s = if ranks.len() == 1 { "" } else { "s" };
    format!("rank{s} {}", ranks.join(", "))
}

fn last_seen(seen: &[Option<String>]) -> String {
    let known: Vec<_> = seen.iter().flatten().map(String::as_str).collect();
    if known.is_empty() { String::new() } else { format!(" (last seen in {})", known.join("; in ")) }
}
