//! The gradients that segments have delivered, and the sums that are still on their way.

use std::collections::{HashMap, VecDeque};

use burn::module::ParamId;
use burn::tensor::Tensor;

use crate::StrategyError;
use crate::zero::{Reducing, add};

/// Blocks whose sums may be on their way while the backward pass goes on. Each holds the whole gradients of a block.
pub const SUMS_IN_FLIGHT: usize = 1;

/// What the segments of one pass have delivered.
#[derive(Default)]
pub(super) struct Deliveries {
    /// Flat.
    there: HashMap<ParamId, Tensor<1>>,
    /// In the order in which they began.
    under_way: VecDeque<Reducing>,
    /// The sums that every rank gets whole, those of small parameters. Nothing waits for them before the end: the ranks
    /// share such a sum once they have it, and what they send then leaves behind the gradients of the next block.
    whole: Vec<Reducing>,
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
        self.under_way.push_back(sums);
        self.whole.push(whole);
        while self.under_way.len() > most {
            self.arrive()?;
        }
        let first = self.under_way.len().saturating_sub(SUMS_IN_FLIGHT);
        self.under_way.iter_mut().take(first).try_for_each(Reducing::advance)
    }

    /// Waits for the oldest sums.
    fn arrive(&mut self) -> Result<(), StrategyError> {
        match self.under_way.pop_front() {
            Some(sums) => self.receive(sums),
            None => Ok(()),
        }
    }

    fn receive(&mut self, sums: Reducing) -> Result<(), StrategyError> {
        sums.wait()?.into_iter().for_each(|(id, sum)| self.add(id, sum));
        Ok(())
    }

    /// Waits for all sums, and returns all gradients.
    pub fn all(mut self) -> Result<HashMap<ParamId, Tensor<1>>, StrategyError> {
        while !self.under_way.is_empty() {
            self.arrive()?;
        }
        std::mem::take(&mut self.whole).into_iter().try_for_each(|sums| self.receive(sums))?;
        Ok(std::mem::take(&mut self.there))
    }
}

/// Waits for the sums of a pass whose gradients nobody takes, such as a trial: what they exchange must not happen during
/// the next pass.
impl Drop for Deliveries {
    fn drop(&mut self) {
        self.under_way.extend(std::mem::take(&mut self.whole));
        while !self.under_way.is_empty() && !std::thread::panicking() {
            // A world that is over says so at its next call.
            let _ = self.arrive();
        }
    }
}
