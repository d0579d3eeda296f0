//! The results of one step while they may still be on the device.

use burn::tensor::{Device, Tensor};
use firebrick_strategies::{Settled, SkipReason};

use crate::TrainError;
use crate::accounting::ParameterBytes;
use crate::engine::agreement::StepOfAll;
use crate::engine::late::Late;
use crate::memory::Usage;
use crate::observe::numbers::StepNumbers;
use crate::observe::rank_report::Exchanged;

/// A step whose results may still be on the device. To read them, the device has to finish the step, so the loop reads
/// them after it has submitted the next one.
pub(crate) struct Step {
    pub update: u64,
    pub items: usize,
    pub tokens: usize,
    pub rate: f64,
    pub seconds: f64,
    /// The outcome of the step. If it is `None`, the device decides: the norm determines the outcome.
    pub settled: Option<Settled>,
    /// What several ranks told each other about the step.
    pub of_all: Option<StepOfAll>,
    /// The loss scale of this step, if the loss is scaled.
    pub loss_scale: Option<f64>,
    /// L2 norm of all gradients before clipping, if there are gradients.
    pub norm: Option<Late>,
    pub bytes: ParameterBytes,
    /// What the step exchanged with other ranks.
    pub exchanged: Exchanged,
    memory: Option<Usage>,
    activations: usize,
    loss: Option<Tensor<1>>,
    /// The loss of the whole step, once its last micro-batch is computed.
    late: Option<Late>,
}

/// Returns the outcome of a step whose gradients have this norm. In every precision, a step whose norm is not finite
/// makes no update, since one such gradient would make all weights that it reaches infinite or NaN.
pub(crate) fn settled_by(norm: f64) -> Settled {
    if norm.is_finite() { Settled::Applied } else { Settled::Skipped(SkipReason::NonFinite) }
}

impl Step {
    /// Creates a step without results.
    pub fn new(update: u64, items: usize, tokens: usize) -> Self {
        Self {
            update,
            items,
            tokens,
            rate: 0.0,
            seconds: 0.0,
            settled: Some(Settled::Applied),
            of_all: None,
            loss_scale: None,
            norm: None,
            bytes: ParameterBytes::default(),
            exchanged: Exchanged::default(),
            memory: None,
            activations: 0,
            loss: None,
            late: None,
        }
    }

    /// Adds the part of one micro-batch to the mean loss of the step.
    pub fn add_loss(&mut self, loss: Tensor<1>) {
        self.loss = Some(match self.loss.take() {
            None => loss,
            Some(sum) => sum + loss,
        });
    }

    /// Takes this rank's part of the loss of the step, to tell the other ranks.
    pub fn take_loss(&mut self) -> Option<Tensor<1>> {
        self.loss.take()
    }

    /// Ends the loss of the step, which may be read together with other numbers.
    pub fn end_loss(&mut self) -> Option<Late> {
        self.late = self.loss.take().map(Late::new);
        self.late.clone()
    }

    /// Samples the memory in use and keeps the highest value.
    pub fn sample_memory(&mut self, device: &Device) {
        let Some(now) = Usage::of(device) else { return };
        let peak = self.memory.map_or(now.peak, |before| before.peak.max(now.peak));
        self.memory = Some(Usage { peak, ..now });
    }

    /// Returns the bytes in use when the memory was sampled last.
    pub fn live(&self) -> Option<usize> {
        self.memory.map(|memory| memory.live)
    }

    /// Reports other bytes in use after the step than those that were sampled last.
    pub fn set_live(&mut self, live: usize) {
        self.memory = Some(Usage { live, ..self.memory.unwrap_or_default() });
    }

    /// Returns the most bytes that a forward and backward pass used.
    pub fn activations(&self) -> usize {
        self.activations
    }

    /// Records the bytes that a forward and backward pass used.
    pub fn add_activations(&mut self, bytes: usize) {
        self.activations = self.activations.max(bytes);
    }

    /// Waits for the device and returns the numbers, and the first of several ranks with a non-finite part of the loss.
    pub fn read(self) -> Result<(StepNumbers, Option<usize>), TrainError> {
        let read = |late: Option<Late>| late.map_or(Ok(0.0), |late| late.read());
        let norm = read(self.norm)?;
        let (loss, infinite, slowest) = match self.of_all {
            None => (read(self.late)?, None, None),
            Some(StepOfAll { loss, infinite, slowest, .. }) => (loss, infinite, slowest),
        };
        let (update, rate, settled) = match (self.settled, settled_by(norm)) {
            (Some(settled), _) => (self.update, self.rate, settled),
            (None, Settled::Applied) => (self.update, self.rate, Settled::Applied),
            // The update was counted before the device had decided.
            (None, skipped) => (self.update - 1, 0.0, skipped),
        };
        let memory = self.memory.unwrap_or_default();
        let (sent_bytes, received_bytes) = self.exchanged.bytes();
        let numbers = StepNumbers {
            step: update,
            loss,
            learning_rate: rate,
            gradient_norm: norm,
            items: self.items,
            tokens: self.tokens,
            seconds: self.seconds,
            tokens_per_second: self.tokens as f64 / self.seconds.max(f64::MIN_POSITIVE),
            loss_scale: self.loss_scale,
            skipped: match settled {
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
