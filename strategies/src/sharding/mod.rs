//! How the ranks divide a model's parameters among them, gather them again, and sum gradients.
//!
//! ```text
//! mod.rs       Reduces, Sharding: which parameters are sharded, and among which ranks
//! rows.rs      the rows of a parameter that each rank holds
//! division.rs  distributes a model, and returns it whole
//! gathers.rs   parameters on their way from the other ranks
//! sums.rs      gradients on their way to the other ranks
//! ```

mod division;
mod gathers;
mod rows;
mod sums;

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use burn::module::{Module, ParamId};
use burn::tensor::{FloatDType, Tensor};
use firebrick_world::{Communicator, numbers};

use crate::moving::BUCKET_BYTES;
use crate::{StrategyError, each_param};

pub(crate) use gathers::{Gathers, shards};
pub use rows::{Rows, Shard};
pub use sums::Part;
pub(crate) use sums::Reducing;

/// The sum of gradients over the ranks, and what the ranks shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reduces {
    /// 0 shards nothing, 1 the optimizer's state, 2 also the gradients, 3 also the replica.
    pub stage: u8,
    /// Gradients are summed with each micro-batch, rather than once per update.
    pub each_micro_batch: bool,
    /// Every rank holds parameters of fewer elements whole.
    pub replicate_below: usize,
    /// The dtype in which gradients travel, if not their own.
    pub sum_in: Option<FloatDType>,
    /// The number of ranks that share a copy of the state, if not all.
    pub within: Option<usize>,
}

impl Reduces {
    /// Returns how many of the ranks share a copy of the state.
    pub fn sharing(&self, ranks: usize) -> usize {
        self.within.map_or(ranks, |within| within.min(ranks))
    }

    /// Returns the rows of all shards of a parameter together, padding included, or `None` if each rank holds the whole
    /// parameter. While the replica is whole, a frozen parameter has no state to share.
    pub fn padded_rows(&self, shape: &[usize], is_trained: bool, ranks: usize) -> Option<usize> {
        let (rows, ranks) = (*shape.first()?, self.sharing(ranks));
        let elements =
            shape.iter().try_fold(1, |all: usize, size| all.checked_mul(*size)).unwrap_or(usize::MAX);
        let is_large = elements >= self.replicate_below.max(1) && rows >= ranks;
        let shards = self.stage > 0 && is_large && (is_trained || self.stage == 3);
        shards.then(|| rows.next_multiple_of(ranks))
    }
}

/// Which parameters are sharded, and among which ranks.
pub struct Sharding {
    /// All ranks.
    world: Communicator,
    /// The ranks that share a copy of the parameters.
    sharing: Communicator,
    /// The ranks that hold the same shards, if there are several copies.
    copies: Option<Communicator>,
    /// The rows of each sharded parameter.
    rows: HashMap<ParamId, Rows>,
    /// The dtype in which gradients travel, if not their own.
    wire: Option<FloatDType>,
    /// Bytes that are on their way together.
    bucket: usize,
    /// Publications of a master so far.
    publications: AtomicU64,
}

/// Sums one number of each rank, `[1]`, in rank order, so that all ranks get the same result.
pub(crate) fn sum_of(ranks: &Communicator, number: Tensor<1>) -> Result<Tensor<1>, StrategyError> {
    let device = number.device();
    let mine = numbers(vec![number]).map_err(|error| StrategyError::Read(error.to_string()))?;
    let sum: f64 = ranks.numbers("the norm of the gradients", &mine)?.iter().flatten().sum();
    Ok(Tensor::from_data([sum as f32], &device))
}

impl fmt::Debug for Sharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sharding({} parameters among {} ranks)", self.rows.len(), self.sharing.size())
    }
}

impl Sharding {
    /// Shards the parameters that [`Reduces::padded_rows`] says. [`Reduces::sharing`] divides the number of ranks.
    pub fn of<M: Module>(model: &M, world: Communicator, reduces: &Reduces) -> Self {
        let (mut rows, ranks) = (HashMap::new(), world.size());
        let each = reduces.sharing(ranks);
        each_param(model, |param| {
            let shape = param.shape();
            if reduces.padded_rows(&shape, param.learns(), ranks).is_some() {
                rows.insert(param.id(), Rows::of(shape[0], each));
            }
        });
        let (sharing, copies) = match each == ranks {
            true => (world.clone(), None),
            false => (world.split(|rank| rank / each), Some(world.split(|rank| rank % each))),
        };
        let (wire, bucket, publications) = (reduces.sum_in, BUCKET_BYTES, AtomicU64::default());
        Self { world, sharing, copies, rows, wire, bucket, publications }
    }

    /// Sets the bytes of parameters or gradients that are on their way together.
    pub fn in_buckets_of(self, bytes: usize) -> Self {
        Self { bucket: bytes, ..self }
    }

    /// Returns all ranks.
    pub fn world(&self) -> &Communicator {
        &self.world
    }

    /// Returns the number of this rank among those that share a copy of the parameters.
    pub(crate) fn rank(&self) -> usize {
        self.sharing.rank()
    }

    /// Returns whether several ranks share a copy of the parameters.
    pub(crate) fn is_shared(&self) -> bool {
        self.sharing.size() > 1
    }

    /// Returns the shard of a parameter that this rank holds, if it is sharded.
    pub fn shard(&self, id: ParamId) -> Option<Shard> {
        let copy = self.copies.as_ref().map_or(0, Communicator::rank);
        Some(self.rows(id)?.of_rank(self.rank(), copy))
    }

    /// Returns whether this parameter is sharded.
    pub fn shards(&self, id: ParamId) -> bool {
        self.rows.contains_key(&id)
    }

    /// Returns the rows that each rank holds of a parameter, if it is sharded.
    pub fn rows(&self, id: ParamId) -> Option<Rows> {
        self.rows.get(&id).copied()
    }

    /// Records that a master was published: what was gathered of an earlier one is out of date.
    pub(crate) fn published(&self) {
        self.publications.fetch_add(1, Relaxed);
    }

    /// Returns the number of the last publication of a master.
    pub(crate) fn publication(&self) -> u64 {
        self.publications.load(Relaxed)
    }

    /// Sums one number of each rank that shares a copy.
    pub fn sum_of(&self, number: Tensor<1>) -> Result<Tensor<1>, StrategyError> {
        sum_of(&self.sharing, number)
    }

    /// Returns how many ranks share a copy of the parameters.
    pub(crate) fn sharing(&self) -> usize {
        self.sharing.size()
    }
}
