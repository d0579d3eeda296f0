//! What a composition costs: the bytes that a rank holds and sends.
//!
//! They are computed parameter by parameter from the [order](crate::Order) of the strategies and the shapes of the
//! model, without the model. A plan shows them, and a run is checked against the memory of the machine by them.
//!
//! ```text
//! mod.rs   PlannedParam: a parameter of a model that need not exist
//! held.rs  bytes that a rank holds
//! sent.rs  elements and bytes that a rank sends
//! ```

mod held;
mod sent;

pub use held::Held;
pub use sent::{
    CallsOfLayers, Sent, sent, sent_across, sent_in_context, sent_in_layers, sent_in_pipeline,
    sent_of_outside,
};

pub use crate::pass::SUMS_IN_FLIGHT;

use firebrick_kernels::packed::Packing;

use crate::Order;

/// A parameter of a model that need not exist. Tied parameters are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedParam<'a> {
    /// The shape of the whole parameter.
    pub shape: &'a [usize],
    /// Bytes of a master element.
    pub master_bytes: u64,
    /// Bytes of a replica element.
    pub replica_bytes: u64,
    /// Whether the parameter is trained.
    pub is_trained: bool,
    /// Whether it belongs to a single block, which segments treat by itself.
    pub in_block: bool,
    /// Whether this block is the one that a forward pass runs last.
    pub in_last_block: bool,
    /// Whether it is a factor of [`Lora`](crate::Lora).
    pub is_factor: bool,
    /// How it is packed, if [`Quantize`](crate::Quantize) packs it.
    pub packing: Option<Packing>,
}

impl PlannedParam<'_> {
    fn elements(&self) -> u64 {
        self.shape.iter().map(|size| *size as u64).product()
    }

    /// Returns the elements, padding included, if the parameter is sharded among the ranks, or `None` if each rank
    /// holds all of it.
    fn padded(&self, order: &Order, ranks: u64) -> Option<u64> {
        if self.packing.is_some() {
            return None;
        }
        let rows = order.reduces()?.padded_rows(self.shape, self.is_trained, ranks as usize)?;
        Some(self.shape[1..].iter().map(|size| *size as u64).product::<u64>() * rows as u64)
    }
}
