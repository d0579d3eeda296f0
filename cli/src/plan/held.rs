//! Computes the bytes that a rank holds, parameter by parameter, by the equations of ZeRO.
//!
//! Rajbhandari et al., *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*, 2020 (arXiv:1910.02054),
//! extended by padding, small replicated parameters, and masters that are views of the replica.

use std::ops::Deref;

use firebrick_strategies::optim::{HeldParam, OptimizerRecipe};
use firebrick_strategies::{Offloads, Order};

use super::parameters::ParamLayout;
use super::recomputed::Traced;
use crate::run::Shape;

/// The order of a list, with what only a run knows.
#[derive(Clone, Debug)]
pub(super) struct Ordered {
    order: Order,
    /// Whether gradients are held between the micro-batches of a window.
    pub holds: bool,
    /// The share of the blocks that is recomputed in the backward pass.
    pub recomputed: f64,
}

impl Ordered {
    /// Adds the share of the blocks that is recomputed, and whether a window may have more micro-batches than the
    /// strategies say.
    pub fn new(order: Order, recomputed: f64, windows_vary: bool) -> Self {
        let recomputed = if order.runs_blocks_again() { 1.0 } else { recomputed };
        Self { holds: order.micro_batches() > 1 || windows_vary, order, recomputed }
    }

    /// Returns the elements, padding included, of a parameter of this shape that is sharded among the ranks, or `None`
    /// if each rank holds the whole parameter.
    pub fn padded(&self, shape: &[usize], is_trained: bool, ranks: u64) -> Option<u64> {
        let rows = self.reduces()?.padded_rows(shape, is_trained, ranks as usize)?;
        Some(shape[1..].iter().map(|size| *size as u64).product::<u64>() * rows as u64)
    }
}

impl Deref for Ordered {
    type Target = Order;

    fn deref(&self) -> &Order {
        &self.order
    }
}

/// Bytes of the first rank, which holds at least as much as any other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    pub master: u64,
    pub replica: u64,
    pub averaged: u64,
    pub gradients: u64,
    pub optimizer: u64,
    /// Bytes on the host, of all the above except the gradients.
    pub host: u64,
    /// Bytes on the device between two steps.
    pub between: u64,
    /// Most bytes on the device during a step.
    pub peak: u64,
}

/// Bytes of gradients at the moments that determine the peak.
#[derive(Clone, Copy, Default)]
struct Gradients {
    /// Gradients that a backward pass leaves.
    left: u64,
    /// The part of them that has been moved to the host by then.
    gone_down: u64,
    /// Gradients that are held between the micro-batches of a window.
    held: u64,
    /// Gradients that the optimizer receives.
    given: u64,
}

impl Held {
    /// Computes the bytes for this optimizer.
    pub fn of(
        shapes: &[Shape],
        layout: &ParamLayout,
        order: &Ordered,
        ranks: u64,
        optimizer: &dyn OptimizerRecipe,
        traced: Traced,
    ) -> Self {
        let placement = layout.placement;
        let (mut held, mut gradients) = (Self::default(), Gradients::default());
        for shape in shapes {
            held.add(shape, layout, order, ranks, optimizer, &mut gradients);
        }
        held.gradients = if order.holds { gradients.held } else { gradients.left };
        let of_master = held.master + held.averaged + held.optimizer;
        let on_host = |bytes: u64, is_there: bool| if is_there { bytes } else { 0 };
        held.host =
            on_host(of_master, placement.master_on_host) + on_host(held.replica, placement.replica_on_host);
        held.between = of_master + held.replica - held.host;
        let of_window = match order.holds && !placement.held_on_host {
            true => gradients.held,
            false => 0,
        };
        let gone_down = on_host(gradients.gone_down, placement.master_on_host);
        let in_pass = match order.delivers() {
            // The traced gradients are those of one rank alone.
            true => traced.activations + gradients.left,
            false => traced.most,
        };
        let pass = held.between + of_window + in_pass.saturating_sub(gone_down);
        let update = held.between + if placement.master_on_host { 0 } else { gradients.given };
        held.peak = pass.max(update);
        held
    }

    fn add(
        &mut self,
        shape: &Shape,
        layout: &ParamLayout,
        order: &Ordered,
        ranks: u64,
        optimizer: &dyn OptimizerRecipe,
        gradients: &mut Gradients,
    ) {
        let treated = layout.get(&shape.path);
        let (whole, stage) = (shape.elements(), order.stage());
        let padded = order.padded(&shape.shape, treated.trained, ranks);
        let shard = padded.map_or(whole, |padded| padded / ranks);
        let is_cast = treated.replica != treated.master;
        let mut master = shard * treated.master;
        let replica = match (order.offloads(), padded.filter(|_| stage < 3)) {
            // The forward pass reads the master itself, or a copy in another dtype.
            (None | Some(Offloads::Parameters), None) if !is_cast => 0,
            (_, None) => shard * treated.replica,
            (offload, Some(padded)) => {
                let is_view = offload.is_none() && !is_cast && ranks > 1;
                if is_view {
                    master = 0;
                }
                // Gathered parameters lose their padding when they are cast or copied.
                let is_copied = is_cast && !order.exchanges_replica()
                    || offload == Some(Offloads::Optimizer) && order.gathers_on_host();
                match ranks == 1 && !is_cast && offload.is_none() {
                    true => 0,
                    false => (if is_copied { whole } else { padded }) * treated.replica,
                }
            }
        };
        self.master += master;
        self.replica += replica;
        if !treated.trained {
            return;
        }
        self.optimizer += optimizer.state_bytes(&HeldParam {
            shape: &shape.shape,
            elements: shard,
            element_bytes: treated.master,
            is_factor: shape.is_factor,
        });
        self.averaged += if order.averages() { shard * 4 } else { 0 };
        let left = if stage >= 2 { shard } else { whole } * treated.replica;
        gradients.left += left;
        let lands = order.delivers() && (stage >= 2 || shape.in_block);
        gradients.gone_down += if lands { left } else { 0 };
        let sum = if order.sums_each_micro_batch() { shard } else { whole };
        gradients.held += sum * order.held_bytes() as u64;
        gradients.given += shard * treated.master;
    }
}
