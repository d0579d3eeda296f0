//! What one step was: first as the device left it, then as numbers.

use burn::tensor::{Device, Tensor};
use firebrick_strategies::{Communicator, Settled};
use serde::Serialize;

use crate::TrainError;
use crate::accounting::ParameterBytes;
use crate::agreement::LossOfAll;
use crate::memory::Usage;
use crate::rank_report::Exchanged;

/// A step whose numbers may still be on the device. Reading them makes the device finish the step,
/// so the loop reads them after it has handed over the next one.
pub(crate) struct Step {
    pub update: u64,
    pub items: usize,
    pub tokens: usize,
    pub rate: f64,
    pub seconds: f64,
    pub settled: Settled,
    /// The first rank that wants to end the run after this step.
    pub stops: Option<usize>,
    /// Where the loss is scaled: by what, in this window.
    pub loss_scale: Option<f64>,
    /// L2 norm of all gradients before clipping; 0 where there were none.
    pub norm: f64,
    pub bytes: ParameterBytes,
    /// With the other ranks.
    pub exchanged: Exchanged,
    memory: Option<Usage>,
    activations: usize,
    loss: Option<Tensor<1>>,
}

/// The numbers of one step, as the dashboard shows and the log keeps them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StepNumbers {
    /// Updates made so far, this one included. A skipped step does not count.
    pub step: u64,
    /// Epoch of the data, from 0.
    pub epoch: u64,
    /// Mean loss over the supervised items of the window.
    pub loss: f64,
    /// Learning rate of the update; 0 where it was skipped.
    pub learning_rate: f64,
    /// L2 norm of all gradients before clipping, without the loss scale.
    pub gradient_norm: f64,
    /// What the window's loss was multiplied by before the backward pass, where it is scaled. After
    /// an overflow the next window's is lower.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// Supervised items in the window.
    pub items: usize,
    /// Tokens in the window, padding not counted.
    pub tokens: usize,
    /// Wall-clock seconds from the end of the step before to the end of this one.
    pub seconds: f64,
    /// `tokens / seconds`.
    pub tokens_per_second: f64,
    /// Updates skipped so far.
    pub skipped_steps: u64,
    /// Why this step made no update, if it made none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    /// Bytes in use after the step; 0 where nothing counts them.
    pub memory_bytes: usize,
    /// Bytes of the parameters: the optimizer's, the replica's where it is another, and their average
    /// where there is one.
    pub parameter_bytes: usize,
    /// As [`Report::gradient_bytes`](crate::Report::gradient_bytes), so far.
    pub gradient_bytes: usize,
    /// Bytes that the first update left in use, as the optimizer's state; 0 where nothing counts
    /// them.
    pub optimizer_bytes: usize,
    /// The most bytes that a forward and backward pass of this step had in use beyond those in use
    /// before it, and beyond the parameters' gradients of recomputed segments: activations and their
    /// gradients.
    pub activation_bytes: usize,
    /// The most bytes in use so far.
    pub peak_bytes: usize,
    /// Bytes that this rank sent to others in this step.
    #[serde(skip_serializing_if = "is_zero")]
    pub sent_bytes: u64,
    /// Bytes that this rank received from others in this step.
    #[serde(skip_serializing_if = "is_zero")]
    pub received_bytes: u64,
    /// The rank that the others waited for longest in this step, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowest_rank: Option<usize>,
    /// Seconds that the rank which waited longest for it waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waited_seconds: Option<f64>,
}

/// What is nothing is left out.
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

impl Step {
    /// Nothing computed yet.
    pub fn new(update: u64, items: usize, tokens: usize) -> Self {
        Self {
            update,
            items,
            tokens,
            rate: 0.0,
            seconds: 0.0,
            settled: Settled::Applied,
            stops: None,
            loss_scale: None,
            norm: 0.0,
            bytes: ParameterBytes::default(),
            exchanged: Exchanged::default(),
            memory: None,
            activations: 0,
            loss: None,
        }
    }

    /// Adds one micro-batch's share of the window's mean loss.
    pub fn add_loss(&mut self, loss: Tensor<1>) {
        self.loss = Some(match self.loss.take() {
            None => loss,
            Some(sum) => sum + loss,
        });
    }

    /// Looks at the memory in use; the highest look counts.
    pub fn sample_memory(&mut self, device: &Device) {
        let Some(now) = Usage::of(device) else { return };
        let peak = self.memory.map_or(now.peak, |before| before.peak.max(now.peak));
        self.memory = Some(Usage { peak, ..now });
    }

    /// A forward and backward pass is over, for which so many bytes were in use.
    pub fn add_activations(&mut self, bytes: usize) {
        self.activations = self.activations.max(bytes);
    }

    /// Waits for the device and reads the numbers, and the first of many ranks whose part of the loss is
    /// not finite. All ranks do so at the same time: the loss is the sum of their parts.
    pub fn read(self, world: &Communicator) -> Result<(StepNumbers, Option<usize>), TrainError> {
        let loss = self.loss.map_or(Ok(0.0), |loss| loss.try_into_scalar::<f64>())?;
        let memory = self.memory.unwrap_or_default();
        let LossOfAll { loss, infinite, slowest } = LossOfAll::agree(world, loss, &self.exchanged)?;
        let (sent_bytes, received_bytes) = self.exchanged.bytes();
        let numbers = StepNumbers {
            step: self.update,
            loss,
            learning_rate: self.rate,
            gradient_norm: self.norm,
            items: self.items,
            tokens: self.tokens,
            seconds: self.seconds,
            tokens_per_second: self.tokens as f64 / self.seconds.max(f64::MIN_POSITIVE),
            loss_scale: self.loss_scale,
            skipped: match self.settled {
                Settled::Applied => None,
                Settled::Skipped(reason) => Some(reason.to_string()),
            },
            memory_bytes: memory.live,
            parameter_bytes: self.bytes.master + self.bytes.replica + self.bytes.averaged,
            gradient_bytes: self.bytes.gradients,
            optimizer_bytes: self.bytes.optimizer,
            activation_bytes: self.activations,
            peak_bytes: memory.peak,
            sent_bytes,
            received_bytes,
            slowest_rank: slowest.map(|(rank, _)| rank),
            waited_seconds: slowest.map(|(_, seconds)| seconds),
            ..StepNumbers::default()
        };
        Ok((numbers, infinite))
    }
}
