//! The bytes of a session: what it holds, when it looks at the memory in use, and the limit that it keeps.

use burn::module::Module;
use burn::tensor::Device;
use firebrick_strategies::{Grads, Pass};
use firebrick_world::is_host;

use crate::TrainError;
use crate::accounting::budget::{Moment, OnDevice, OverBudget};
use crate::accounting::{ParameterBytes, Placement};
use crate::engine::step::Step;
use crate::memory::{Beyond, PassPeak};

/// Steps in which everything is measured, where a look is not free: before the optimizer has a state, and after.
const MEASURED: u64 = 2;

/// Measures the memory of a session, and checks it against a budget.
///
/// On the CPU a look at the memory in use is free, and everything is measured in each step. A device's pool is asked
/// through the queue of operations, which a look holds up. After the first steps it is asked once in each: after the last
/// forward pass and after the update, in turns. What a step does not look at is reported as it was seen last.
#[derive(Debug)]
pub(super) struct MemoryProbe {
    /// Bytes of master, replica, gradients and optimizer state.
    pub bytes: ParameterBytes,
    /// The limit on the bytes on the device.
    pub budget: Option<usize>,
    device: Device,
    /// Steps with items so far.
    steps: u64,
    /// What this step looks at.
    look: Look,
    /// What the last pass of this step took, until its gradients are collected.
    taken: PassPeak,
    /// The gradients of this step.
    gradients: GradientBytes,
    /// Bytes in use before the last pass that was measured, without gradients and without what the passes of the step
    /// share.
    before: usize,
    /// Gradients that the stages held then.
    held_before: usize,
    /// Bytes that the passes of the step share, and an earlier one has allocated.
    shared: usize,
    /// Bytes in use after the last step that was looked at.
    live: usize,
    /// Bytes that the last pass used which was looked at.
    activations: usize,
}

/// What one step looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// Each pass from begin to end, and the end of the step.
    Everything,
    /// The end of the last forward pass.
    Pass,
    /// The end of the step.
    End,
}

/// Bytes of the gradients of one step.
#[derive(Clone, Copy, Debug, Default)]
struct GradientBytes {
    /// The most that a pass left.
    left: usize,
    /// What the stages hold now, and the most that they held.
    holds: usize,
    held: usize,
}

impl MemoryProbe {
    pub fn new(bytes: ParameterBytes, device: &Device) -> Self {
        Self {
            bytes,
            budget: None,
            device: device.clone(),
            steps: 0,
            look: Look::Everything,
            taken: PassPeak::default(),
            gradients: GradientBytes::default(),
            before: 0,
            held_before: 0,
            shared: 0,
            live: 0,
            activations: 0,
        }
    }

    /// Checks what is on the device at one moment against the budget, if there is one.
    pub fn check(&self, found: OnDevice, moment: Moment) -> Result<(), TrainError> {
        match self.budget {
            None => Ok(()),
            Some(budget) => Ok(OverBudget::check(budget, found, moment)?),
        }
    }

    /// Begins a step. Returns whether its passes are measured in a device's pool, where parameters that come during
    /// a pass would count as its own.
    pub fn begin(&mut self) -> bool {
        let is_free = is_host(&self.device);
        self.steps += 1;
        self.look = match is_free || self.steps <= MEASURED {
            true => Look::Everything,
            false if self.steps.is_multiple_of(2) => Look::End,
            false => Look::Pass,
        };
        self.gradients = GradientBytes::default();
        self.look == Look::Everything && !is_free
    }

    /// Begins a forward and backward pass.
    pub fn begin_pass(&mut self, pass: &Pass) -> Option<Beyond> {
        let shared = pass.shared_bytes();
        let beyond = (self.look == Look::Everything).then(|| Beyond::begin(&self.device))?;
        self.before = beyond.before().saturating_sub(shared);
        self.shared = shared;
        self.held_before = self.held_on_device();
        Some(beyond)
    }

    /// Looks after a forward pass, the step's last or not.
    pub fn after_forward(&self, is_last: bool, step: &mut Step) {
        if self.look == Look::Everything || (self.look == Look::Pass && is_last) {
            step.sample_memory(&self.device);
        }
    }

    /// Ends a pass.
    pub fn end_pass(&mut self, beyond: Option<Beyond>, step: &mut Step) {
        self.taken = match (beyond, step.live()) {
            (Some(beyond), _) => {
                let PassPeak { activations, most } = beyond.end(&self.device);
                // What the stages have summed of passes in between is not the passes' own.
                let held = self.held_on_device().saturating_sub(self.held_before);
                let most = (most + self.shared).saturating_sub(held);
                PassPeak { activations: activations + self.shared, most }
            }
            (None, Some(live)) => {
                let activations = live.saturating_sub(self.before + self.held_on_device());
                PassPeak { activations, most: activations }
            }
            (None, None) => {
                self.taken = PassPeak { activations: self.activations, most: self.activations };
                return;
            }
        };
        step.add_activations(self.taken.activations);
    }

    /// Counts the gradients that a micro-batch left to the parameters of `replica`, before the stages collect them.
    ///
    /// # Errors
    ///
    /// The pass used more than the budget.
    pub fn before_collect<M: Module>(&mut self, grads: &Grads, replica: &M) -> Result<(), TrainError> {
        let taken = std::mem::take(&mut self.taken);
        let leaves = grads.bytes(replica);
        let gone_down = if self.bytes.placement.master_on_host { grads.delivered_bytes() } else { 0 };
        self.gradients.left = self.gradients.left.max(leaves);
        let found = OnDevice {
            activations: taken.most.saturating_sub(leaves),
            gradients: self.held_on_device() + leaves - gone_down,
            ..OnDevice::between_steps(&self.bytes)
        };
        self.check(found, Moment::Pass)
    }

    /// Counts what the stages hold of the gradients of the step.
    pub fn after_collect(&mut self, holds: usize) {
        self.gradients.holds = holds;
        self.gradients.held = self.gradients.held.max(holds);
        // Other passes of a pipeline may be between forward and backward.
        Beyond::holding(self.held_on_device(), &self.device);
    }

    /// Ends the passes of a step.
    pub fn end_passes(&mut self) {
        // If a stage holds the sum, the gradients of a backward pass are only transient.
        let GradientBytes { left, held, .. } = self.gradients;
        self.bytes.gradients = self.bytes.gradients.max(if held > 0 { held } else { left });
    }

    /// Bytes that the stages hold on the device.
    fn held_on_device(&self) -> usize {
        if self.bytes.placement.held_on_host { 0 } else { self.gradients.holds }
    }

    /// Checks what an update used whose gradients had so many bytes.
    ///
    /// # Errors
    ///
    /// The update used more than the budget.
    pub fn after_update(&self, gradients: usize) -> Result<(), TrainError> {
        let Placement { master_on_host, .. } = self.bytes.placement;
        let gradients = if master_on_host { 0 } else { gradients };
        self.check(OnDevice { gradients, ..OnDevice::between_steps(&self.bytes) }, Moment::Update)
    }

    /// Ends a step: reports what it did not look at, and keeps what it did.
    pub fn end(&mut self, step: &mut Step) {
        match self.look {
            // The last micro-batch has no pass if it has no items.
            Look::Pass if step.live().is_some() => self.activations = step.activations(),
            Look::Pass | Look::End => step.add_activations(self.activations),
            Look::Everything => self.activations = step.activations(),
        }
        match self.look {
            Look::Pass => step.set_live(self.live),
            Look::Everything | Look::End => {
                step.sample_memory(&self.device);
                self.live = step.live().unwrap_or(0);
            }
        }
        step.bytes = self.bytes;
    }

    /// Reports the bytes of a step without a pass.
    pub fn without_pass(&self, step: &mut Step) {
        match is_host(&self.device) {
            true => step.sample_memory(&self.device),
            false => step.set_live(self.live),
        }
        step.bytes = self.bytes;
    }
}
