//! Computes the bytes that a rank holds, parameter by parameter, by the equations of ZeRO.
//!
//! Rajbhandari et al., *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*, 2020 (arXiv:1910.02054),
//! extended by padding, small replicated parameters, and masters that are views of the replica.

use super::PlannedParam;
use crate::optim::{HeldParam, OptimizerRecipe};
use crate::{Offloads, Order};

/// Bytes of the first rank, which holds at least as much as any other.
///
/// ```
/// use firebrick_strategies::cost::{Held, PlannedParam};
/// use firebrick_strategies::optim::AdamW;
/// use firebrick_strategies::{Order, StrategyRecipe, Zero};
///
/// let shape = [4096, 4096];
/// let matrix = PlannedParam {
///     shape: &shape, master_bytes: 4, replica_bytes: 4, is_trained: true, in_block: true, in_last_block: false,
///     is_factor: false, packing: None,
/// };
/// let bytes = |stage| {
///     let order = Order::of([Zero::stage(stage).effects()]).unwrap();
///     let held = Held::of([matrix], &order, false, 4, &AdamW::new());
///     (held.between() + held.gradients) / (4096 * 4096)
/// };
/// assert_eq!([0, 1, 2, 3].map(bytes), [16, 10, 7, 4]); // 16, 8 + 8/4, 4 + 12/4, 16/4
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The parameters that the optimizer updates.
    pub master: u64,
    /// The parameters that the forward pass reads, beyond the master.
    pub replica: u64,
    /// The average of the weights.
    pub averaged: u64,
    /// The gradients: those of an optimizer step, or those that a backward pass leaves if a step has one micro-batch.
    pub gradients: u64,
    /// The optimizer's state in memory.
    pub optimizer: u64,
    /// The bytes on the host, of all the above except the gradients.
    pub host: u64,
    /// The optimizer's state, if a disk keeps it.
    pub disk: u64,
    /// The parameters of blocks, if the disk keeps them too: the master, and the replica if it is in another dtype.
    pub disk_parameters: u64,
    /// The most bytes of gradients on the host during a step.
    pub host_gradients: u64,
    /// Gradients that stay on the device between the micro-batches of a step.
    of_step: u64,
    /// Gradients that a backward pass leaves, as far as blocks hand theirs over.
    delivered: Option<u64>,
    /// The part of a pass's gradients that has moved to the host by its end.
    gone_down: u64,
    /// Gradients that the optimizer receives on the device.
    given: u64,
}

/// Bytes of gradients at the moments that determine the peak.
#[derive(Clone, Copy, Default)]
struct Gradients {
    /// Gradients that a backward pass leaves.
    left: u64,
    /// The part of them that has been moved to the host by then.
    gone_down: u64,
    /// Gradients that are held between the micro-batches of a step.
    held: u64,
    /// Gradients that the optimizer receives.
    given: u64,
}

impl Held {
    /// Computes the bytes of a model on one of so many ranks. `steps_vary` says whether a step may have more
    /// micro-batches than the strategies say.
    pub fn of<'a>(
        params: impl IntoIterator<Item = PlannedParam<'a>>,
        order: &Order,
        steps_vary: bool,
        ranks: u64,
        optimizer: &dyn OptimizerRecipe,
    ) -> Self {
        let (mut held, mut gradients) = (Self::default(), Gradients::default());
        let ranks = order.sharing(ranks);
        for param in params {
            held.add(&param, order, ranks, optimizer, &mut gradients);
        }
        if order.on_disk().is_some() {
            held.disk = std::mem::take(&mut held.optimizer);
        }
        let [master_on_host, replica_on_host, held_on_host] = order.on_host();
        let if_so = |bytes: u64, is_so: bool| if is_so { bytes } else { 0 };
        let holds = order.micro_batches() > 1 || steps_vary;
        held.gradients = if holds { gradients.held } else { gradients.left };
        held.host = if_so(held.of_master(), master_on_host) + if_so(held.replica, replica_on_host);
        held.of_step = if_so(gradients.held, holds && !held_on_host);
        held.delivered = order.delivers().then_some(gradients.left);
        held.gone_down = if_so(gradients.gone_down, master_on_host);
        held.host_gradients = held.gone_down + if_so(gradients.held, holds && held_on_host);
        held.given = if_so(gradients.given, !master_on_host);
        held
    }

    fn of_master(&self) -> u64 {
        self.master + self.averaged + self.optimizer
    }

    /// Returns the bytes on the device between two steps, without gradients.
    pub fn between(&self) -> u64 {
        self.of_master() + self.replica - self.host
    }

    /// Returns the most bytes on the device during a step whose pass takes so many bytes of activations, and `most`
    /// with the gradients that one rank alone would leave.
    pub fn peak(&self, activations: u64, most: u64) -> u64 {
        let in_pass = self.delivered.map_or(most, |left| activations + left);
        let pass = self.of_step + in_pass.saturating_sub(self.gone_down);
        self.between() + pass.max(self.given)
    }

    fn add(
        &mut self,
        param: &PlannedParam<'_>,
        order: &Order,
        ranks: u64,
        optimizer: &dyn OptimizerRecipe,
        gradients: &mut Gradients,
    ) {
        let to_disk = order.offloads_parameters_to_disk() && param.in_block;
        if let Some(packing) = param.packing {
            // The forward pass reads it where the replica is; the parameter itself is a placeholder of one element.
            self.replica += packing.bytes(param.elements() as usize) as u64;
            *(if to_disk { &mut self.disk_parameters } else { &mut self.master }) += param.master_bytes;
            return;
        }
        let (whole, stage, offloads) = (param.elements(), order.stage(), order.offloads());
        let padded = param.padded(order, ranks);
        let shard = padded.map_or(whole, |padded| padded / ranks);
        let is_cast = param.replica_bytes != param.master_bytes;
        let mut master = shard * param.master_bytes;
        let replica = match (offloads, padded.filter(|_| stage < 3)) {
            // The forward pass reads the master itself, or a copy in another dtype.
            (None | Some(Offloads::Parameters), None) if !is_cast => 0,
            (_, None) => shard * param.replica_bytes,
            (offloads, Some(padded)) => {
                let is_view = offloads.is_none() && !is_cast && ranks > 1;
                if is_view {
                    master = 0;
                }
                match ranks == 1 && !is_cast && offloads.is_none() {
                    true => 0,
                    false => padded * param.replica_bytes,
                }
            }
        };
        // What stages 1 and 2 gather of the replica is in memory, and what they gather it from waits as the master does.
        let is_gathered = padded.is_some() && stage < 3;
        match to_disk {
            false => {
                self.master += master;
                self.replica += replica;
            }
            true => {
                self.disk_parameters += master + if is_cast { shard * param.replica_bytes } else { 0 };
                self.replica += if is_gathered { replica } else { 0 };
            }
        }
        if !param.is_trained {
            return;
        }
        self.optimizer += optimizer.state_bytes(&HeldParam {
            shape: param.shape,
            elements: shard,
            element_bytes: param.master_bytes,
            is_factor: param.is_factor,
        });
        self.averaged += if order.averages() { shard * 4 } else { 0 };
        let left = if stage >= 2 { shard } else { whole } * param.replica_bytes;
        gradients.left += left;
        let lands = order.delivers() && (stage >= 2 || param.in_block);
        gradients.gone_down += if lands { left } else { 0 };
        let sum = if order.sums_each_micro_batch() { shard } else { whole };
        gradients.held += sum * order.held_bytes() as u64;
        gradients.given += shard * param.master_bytes;
    }
}
