//! The gradients that segments have delivered, and those that are still on their way.

use std::collections::{HashMap, VecDeque};

use burn::module::ParamId;
use burn::tensor::{FloatDType, Tensor};
use firebrick_kernels::cast;

use crate::StrategyError;
use crate::moving::Moving;
use crate::sharding::Reducing;

/// Blocks whose sums may be on their way while the backward pass goes on. Each holds the whole gradients of a block.
pub const SUMS_IN_FLIGHT: usize = 1;

/// Blocks whose gradients may be on their way to the host while the backward pass goes on. It waits for those of one block
/// when the next block has begun to compute.
const MOVES_IN_FLIGHT: usize = 1;

/// What the segments of one pass have delivered.
#[derive(Default)]
pub(super) struct Deliveries {
    /// Flat.
    there: HashMap<ParamId, Tensor<1>>,
    /// In the order in which they began.
    under_way: VecDeque<UnderWay>,
    /// The sums that every rank gets whole, those of small parameters. Nothing waits for them before the end: the ranks
    /// share such a sum once they have it, and what they send then leaves behind the gradients of the next block.
    whole: Vec<UnderWay>,
}

/// The gradients of a block that are on their way.
#[allow(clippy::large_enum_variant, reason = "there are a few at a time; a box would buy nothing")]
enum UnderWay {
    Sums(Reducing),
    Moves(Vec<ParamId>, Moving),
}

impl UnderWay {
    fn advance(&mut self) -> Result<(), StrategyError> {
        match self {
            Self::Sums(sums) => sums.advance(),
            Self::Moves(..) => Ok(()),
        }
    }

    fn wait(self) -> Result<Vec<(ParamId, Tensor<1>)>, StrategyError> {
        match self {
            Self::Sums(sums) => sums.wait(),
            Self::Moves(ids, moving) => Ok(std::iter::zip(ids, moving.wait()?).collect()),
        }
    }
}

impl Deliveries {
    /// Adds a gradient.
    pub fn add(&mut self, id: ParamId, grad: Tensor<1>) {
        add(&mut self.there, id, grad);
    }

    /// Adds the sums of a block once they arrive. Waits for the oldest if too many are on their way. Those over copies of
    /// the shards, which are small, follow one block behind those of the block.
    pub fn expect(&mut self, sums: Reducing) -> Result<(), StrategyError> {
        let most = SUMS_IN_FLIGHT + usize::from(sums.has_copies());
        let (sums, whole) = sums.without_whole();
        self.under_way.push_back(UnderWay::Sums(sums));
        self.whole.push(UnderWay::Sums(whole));
        while self.under_way.len() > most {
            self.arrive()?;
        }
        let first = self.under_way.len().saturating_sub(SUMS_IN_FLIGHT);
        self.under_way.iter_mut().take(first).try_for_each(UnderWay::advance)
    }

    /// Adds the gradients of a block once they arrive on the host. Waits for those of the block before.
    pub fn land(&mut self, ids: Vec<ParamId>, moving: Moving) -> Result<(), StrategyError> {
        self.under_way.push_back(UnderWay::Moves(ids, moving));
        while self.under_way.len() > MOVES_IN_FLIGHT {
            self.arrive()?;
        }
        Ok(())
    }

    /// Waits for the oldest ones.
    fn arrive(&mut self) -> Result<(), StrategyError> {
        if let Some(oldest) = self.under_way.pop_front() {
            oldest.wait()?.into_iter().for_each(|(id, grad)| self.add(id, grad));
        }
        Ok(())
    }

    /// Waits for all that are on their way, and returns all gradients.
    pub fn all(mut self) -> Result<HashMap<ParamId, Tensor<1>>, StrategyError> {
        self.under_way.extend(std::mem::take(&mut self.whole));
        while !self.under_way.is_empty() {
            self.arrive()?;
        }
        Ok(std::mem::take(&mut self.there))
    }
}

/// Adds a gradient delivered from elsewhere to a parameter's sum, in the dtype of the sum.
pub(super) fn add(sums: &mut HashMap<ParamId, Tensor<1>>, id: ParamId, more: Tensor<1>) {
    let sum = match sums.remove(&id) {
        None => more,
        Some(sum) => {
            let dtype = FloatDType::from(sum.dtype());
            sum + cast(more, dtype)
        }
    };
    sums.insert(id, sum);
}

/// Waits for the sums and moves of a pass whose gradients nobody takes, such as a trial or one with a fault: what they
/// exchange must not happen during the next pass, and a device must not write into memory that is free.
impl Drop for Deliveries {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        for one in self.under_way.drain(..).chain(self.whole.drain(..)) {
            match one {
                UnderWay::Sums(sums) => sums.end(),
                UnderWay::Moves(_, moving) => drop(moving.wait()),
            }
        }
    }
}
