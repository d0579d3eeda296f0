//! The place of each strategy in a list, as far as bytes depend on it.

use burn::tensor::{DType, FloatDType};

use crate::{OffloadConfig, StrategyConfig, ZeroConfig};

/// What a list of strategies does to memory, and in which order.
#[derive(Clone, Debug)]
pub(super) struct Order {
    /// How the ranks shard state.
    pub zero: ZeroConfig,
    zero_at: usize,
    amp_at: Option<usize>,
    accumulate_at: Option<usize>,
    /// Micro-batches in an update.
    pub micro_batches: u64,
    /// Whether gradients are held between the micro-batches of a window.
    pub holds: bool,
    /// Bytes of an element of the held sum.
    pub held: u64,
    pub offload: Option<OffloadConfig>,
    offload_at: Option<usize>,
    /// Whether an average of the weights is kept.
    pub averages: bool,
    /// The share of the blocks that is recomputed in the backward pass.
    pub recomputed: f64,
}

impl Order {
    /// Reads a list that includes the ranks and the micro-batches. `recomputed` is the share of the blocks that is
    /// recomputed.
    pub fn of(strategies: &[StrategyConfig], recomputed: f64) -> Self {
        let mut order = Self {
            zero: ZeroConfig::from(0),
            zero_at: usize::MAX,
            amp_at: None,
            accumulate_at: None,
            micro_batches: 1,
            holds: false,
            held: 4,
            offload: None,
            offload_at: None,
            averages: false,
            recomputed,
        };
        for (at, strategy) in strategies.iter().enumerate() {
            match strategy {
                StrategyConfig::Zero(zero) => (order.zero, order.zero_at) = (zero.clone(), at),
                StrategyConfig::Amp(_) => order.amp_at = Some(at),
                StrategyConfig::Accumulate(count) => {
                    (order.accumulate_at, order.micro_batches) = (Some(at), *count as u64);
                }
                StrategyConfig::AccumulateIn(count, dtype) => {
                    (order.accumulate_at, order.micro_batches) = (Some(at), *count as u64);
                    order.held = DType::from(FloatDType::from(*dtype)).size() as u64;
                }
                StrategyConfig::Offload(offload) => {
                    (order.offload, order.offload_at) = (Some(*offload), Some(at))
                }
                StrategyConfig::Ema(_) => order.averages = true,
                StrategyConfig::Recompute(_)
                | StrategyConfig::Clip(_)
                | StrategyConfig::Lora(_)
                | StrategyConfig::Freeze(_) => (),
            }
        }
        order.holds = order.micro_batches > 1;
        // Blocks whose parameters are fetched or gathered are recomputed in the backward pass.
        if order.zero.stage == 3 || order.offload == Some(OffloadConfig::parameters) {
            order.recomputed = 1.0;
        }
        order
    }

    /// Whether the ranks exchange data in the replica's dtype rather than the master's.
    pub fn exchanges_replica(&self) -> bool {
        self.zero.stage >= 2 || self.amp_at.is_none_or(|amp| self.zero_at < amp)
    }

    /// Whether the gradients of each micro-batch are summed over the ranks, rather than those of the window.
    pub fn sums_each_micro_batch(&self) -> bool {
        self.zero.stage >= 2 || self.accumulate_at.is_none_or(|accumulate| self.zero_at < accumulate)
    }

    /// Whether parameters are gathered on the host and then copied to the device.
    pub fn gathers_on_host(&self) -> bool {
        self.offload_at.is_some_and(|offload| offload < self.zero_at)
    }

    /// Whether blocks hand over their gradients as soon as the backward pass leaves them.
    pub fn delivers(&self) -> bool {
        let nothing_between = |at: usize| {
            let before = [self.amp_at, self.accumulate_at].into_iter().flatten();
            before.into_iter().all(|other| other > at) && !(self.zero_at < at && self.zero.stage < 2)
        };
        self.zero.stage >= 2 || self.offload_at.is_some_and(nothing_between)
    }

    /// Returns the elements, padding included, of a parameter of this shape that is sharded among the ranks, or `None`
    /// if each rank holds the whole parameter.
    pub fn padded(&self, shape: &[usize], trained: bool, ranks: u64) -> Option<u64> {
        const REPLICATE_BELOW: usize = 1024;
        let elements: u64 = shape.iter().map(|size| *size as u64).product();
        let smallest = self.zero.replicate_below.unwrap_or(REPLICATE_BELOW).max(1) as u64;
        let rows = *shape.first()? as u64;
        let divides = self.zero.stage > 0 && elements >= smallest && rows >= ranks;
        (divides && (trained || self.zero.stage == 3)).then(|| elements / rows * rows.next_multiple_of(ranks))
    }
}
