//! Calls: the part of a collective that all ranks must agree on, and the ranks that call together.

use std::{
    fmt::{self, Display},
    sync::Arc,
};

use burn::tensor::{DType, TensorData};
use serde::{Deserialize, Serialize};

use crate::WorldError;

/// The kind of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    /// Sums all ranks' tensors; every rank gets the sum.
    AllReduce,
    /// Sums all ranks' tensors; each rank gets a chunk of the sum.
    ReduceScatter,
    /// Every rank gets each rank's tensor.
    AllGather,
    /// Every rank gets one rank's tensor.
    Broadcast,
    /// Each rank gets a chunk of one rank's tensor.
    Scatter,
    /// One rank gets each rank's tensor.
    Gather,
    /// One rank gets the tensors of another.
    Send,
    /// Each rank gets the tensors of the rank before it, and the first one those of the last one.
    Shift,
    /// Waits until all ranks have arrived.
    Barrier,
    /// Every rank gets a few numbers, or bytes, of each rank.
    Scalars,
}

impl Display for Collective {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        to.write_str(match self {
            Collective::AllReduce => "all_reduce",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::AllGather => "all_gather",
            Collective::Broadcast => "broadcast",
            Collective::Scatter => "scatter",
            Collective::Gather => "gather",
            Collective::Send => "send",
            Collective::Shift => "shift",
            Collective::Barrier => "barrier",
            Collective::Scalars => "numbers",
        })
    }
}

/// The shape and dtypes of a part, the same on every rank, including ranks that lack the part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartShape {
    /// The part's shape on each rank, before the reduction.
    pub shape: Vec<usize>,
    /// The part's dtype on each rank and on the wire.
    pub dtype: DType,
    /// The dtype of the result. The sum is rounded to it once.
    pub sum: DType,
}

impl PartShape {
    /// Describes this data as a part, summed in the same dtype.
    pub fn of(data: &TensorData) -> Self {
        Self { shape: data.shape().to_vec(), dtype: data.dtype(), sum: data.dtype() }
    }

    /// Describes a flat part of so many elements, summed in its own dtype.
    pub fn flat(elements: usize, dtype: DType) -> Self {
        Self { shape: vec![elements], dtype, sum: dtype }
    }

    pub(super) fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

impl Display for PartShape {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        write!(to, "{:?} {}", self.shape, name(self.dtype))?;
        if self.sum != self.dtype {
            write!(to, " summed to {}", name(self.sum))?;
        }
        Ok(())
    }
}

/// Returns a dtype's name as users write it.
pub(super) fn name(dtype: DType) -> String {
    format!("{dtype:?}").to_lowercase()
}

/// A call, as each rank announces it to the others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Call {
    pub kind: Collective,
    pub what: String,
    pub root: Option<usize>,
    pub parts: Vec<PartShape>,
}

impl Call {
    pub fn new(kind: Collective, what: &str, parts: Vec<PartShape>) -> Self {
        Self { kind, what: what.to_string(), root: None, parts }
    }

    pub fn rooted(self, root: usize) -> Self {
        Self { root: Some(root), ..self }
    }

    /// Returns the error of a tensor of this call that its device could not give.
    pub fn unread(&self, error: impl Display) -> WorldError {
        WorldError::Read { call: self.to_string(), reason: error.to_string() }
    }

    /// Formats this call and another so that a reader can tell them apart: if their texts are equal, adds the
    /// first part that differs.
    pub fn beside(&self, other: &Self) -> (String, String) {
        let (mine, theirs) = (self.to_string(), other.to_string());
        if mine != theirs {
            return (mine, theirs);
        }
        let at = self.parts.iter().zip(&other.parts).position(|(mine, theirs)| mine != theirs);
        at.map_or((mine.clone(), theirs.clone()), |at| {
            (
                format!("{mine} with part {at} {}", self.parts[at]),
                format!("{theirs} with part {at} {}", other.parts[at]),
            )
        })
    }
}

impl Display for Call {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        write!(to, "{}", self.kind)?;
        if !self.what.is_empty() {
            write!(to, " of {}", self.what)?;
        }
        match self.parts.as_slice() {
            [] => {}
            [one] if self.what.is_empty() => write!(to, " of {one}")?,
            parts => {
                let elements: usize = parts.iter().map(PartShape::elements).sum();
                let s = if parts.len() == 1 { "" } else { "s" };
                write!(to, " ({} part{s}, {elements} elements)", parts.len())?;
            }
        }
        match self.root {
            Some(root) if self.kind == Collective::Gather => write!(to, " to rank {root}"),
            Some(root) => write!(to, " from rank {root}"),
            None => Ok(()),
        }
    }
}

/// The ranks that call together: those of the world, or some of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Distinguishes the groups of each rank: it is part of their call numbers.
    pub number: u64,
    /// The ranks in the world, in the order in which the group numbers them.
    pub members: Arc<[usize]>,
}

impl Group {
    /// Call numbers of each group.
    const CALLS: u64 = 1 << 48;

    /// Returns the number of a call of this group among all calls of a rank.
    pub fn sequence(&self, call: u64) -> u64 {
        self.number * Self::CALLS + call
    }
}
