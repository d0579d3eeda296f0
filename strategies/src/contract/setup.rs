//! What a strategy sees when it starts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use burn::module::Module;
use burn::tensor::Device;
use firebrick_world::Communicator;

use crate::moving::BUCKET_BYTES;
use crate::{Effects, ModelParts, Offloads, Order, Pass, SegmentPlan, StrategyError};

/// The model, the device, and what the strategies so far do to the gradients.
///
/// Strategies start in the order in which gradients pass through them. The [effects](crate::StrategyRecipe::effects)
/// of each strategy are added before it starts; it finds here what happens to the gradients before it.
#[derive(Debug)]
pub struct Setup<'a, M> {
    model: &'a M,
    device: &'a Device,
    order: Order,
    segments: SegmentPlan,
    world: Communicator,
    parts: Option<Arc<ModelParts>>,
    master_is_away: Arc<AtomicBool>,
    gradients_land: Arc<AtomicBool>,
    offloads_parameters_to_disk: Arc<AtomicBool>,
}

impl<'a, M> Setup<'a, M> {
    /// Creates a setup without strategies, on one rank.
    pub fn new(model: &'a M, device: &'a Device) -> Self
    where
        M: Module,
    {
        Self {
            model,
            device,
            order: Order::default(),
            segments: SegmentPlan::of(model),
            world: Communicator::solo(),
            parts: None,
            master_is_away: Arc::default(),
            gradients_land: Arc::default(),
            offloads_parameters_to_disk: Arc::default(),
        }
    }

    /// Sets the communicator of a rank that is one of several.
    pub fn among(self, world: Communicator) -> Self {
        Self { world, ..self }
    }

    /// Divides the model among ranks. From then on, [`world`](Self::world) has the ranks that hold the same part as this one.
    pub fn dividing(self, parts: Option<Arc<ModelParts>>) -> Self {
        let Some(held) = &parts else { return self };
        let ranks = held.ranks().size();
        Self { world: self.world.split(|rank| rank % ranks), parts, ..self }
    }

    /// Returns the parts of the model that ranks hold, if they divide it.
    pub fn parts(&self) -> Option<&Arc<ModelParts>> {
        self.parts.as_ref()
    }

    /// Adds the effects of a strategy to those of the strategies so far.
    ///
    /// # Errors
    ///
    /// A technique stands twice.
    pub fn add(&mut self, effects: Effects) -> Result<(), StrategyError> {
        let (offloads, moves) = (effects.offloads, effects.moves.unwrap_or(BUCKET_BYTES));
        self.order.add(effects)?;
        self.offloads_parameters_to_disk.store(self.order.offloads_parameters_to_disk(), Relaxed);
        if let Some(offloads) = offloads {
            self.master_is_away.store(true, Relaxed);
            if self.order.lands_on_host() {
                // A strategy that sums after this one finds the gradients on the host and keeps the sum there.
                let reduces = self.order.reduces();
                self.gradients_land.store(reduces.is_some(), Relaxed);
                // Gradients that are summed at the end of the pass are summed whole before they are offloaded.
                let sums_later = reduces.is_some_and(|reduces| reduces.stage < 2);
                self.segments.offload(offloads == Offloads::Parameters, !sums_later, moves);
            }
        }
        Ok(())
    }

    /// Returns what the strategies so far do, in their order.
    pub fn order(&self) -> &Order {
        &self.order
    }

    /// Returns this rank's communicator with the ranks that hold the same part of the model: all, unless ranks divide it.
    pub fn world(&self) -> &Communicator {
        &self.world
    }

    /// Returns a flag that is true if the master is on another device than the replica. Read it once all strategies
    /// have started.
    pub fn master_is_away(&self) -> Arc<AtomicBool> {
        self.master_is_away.clone()
    }

    /// Returns a flag that is true if the gradients summed over the ranks go straight to the host, because no strategy
    /// in between reads them on the device. Read it once all strategies have started.
    pub fn gradients_land(&self) -> Arc<AtomicBool> {
        self.gradients_land.clone()
    }

    /// Returns a flag that is true if the parameters of blocks [wait on a disk](Order::offloads_parameters_to_disk) between two updates.
    /// Read it once all strategies have started.
    pub fn offloads_parameters_to_disk(&self) -> Arc<AtomicBool> {
        self.offloads_parameters_to_disk.clone()
    }

    /// Returns the model, on the device where the user created it, or on the training device if no strategy
    /// [places](Order::places_master) the master.
    pub fn model(&self) -> &'a M {
        self.model
    }

    /// Returns the device that the forward pass runs on.
    pub fn device(&self) -> &'a Device {
        self.device
    }

    /// Returns the plan for the model's segments, as decided so far.
    pub fn segments(&self) -> &SegmentPlan {
        &self.segments
    }

    /// Returns the plan for the model's segments, for a strategy that acts in the pass.
    pub fn segments_mut(&mut self) -> &mut SegmentPlan {
        &mut self.segments
    }

    /// Creates the training pass for all strategies together, once they have started.
    pub fn into_pass(self) -> Pass {
        let device = match self.segments.is_elementwise() && self.device.is_autodiff() {
            true => self.device.clone().gradient_checkpointing(),
            false => self.device.clone(),
        };
        let dtype = self.order.training_dtype();
        let pass = Pass::train(&device).planned(Arc::new(self.segments)).computing_in(dtype);
        pass.timed_by(self.world.timeline().clone())
    }
}
