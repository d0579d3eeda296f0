//! The passes of an optimizer step: what is left of its micro-batches, and the passes between forward and backward.

use std::collections::HashMap;

use burn::tensor::Tensor;
use firebrick_datasets::Batch;
use firebrick_kernels::Draws;
use firebrick_strategies::{Pass, PipelineStep};

use super::weights::AwaitedParams;
use crate::TrainError;
use crate::engine::feed::{Feed, MicroBatch, RankBatch};
use crate::memory::Beyond;

/// The micro-batches of an optimizer step, each of which has one pass through every stage of this rank.
pub(super) struct Passes<B, M> {
    epoch: u64,
    micro_batches: Vec<MicroBatch<B>>,
    /// The items of each micro-batch over all ranks.
    items: Vec<usize>,
    /// Whether a rank without items takes part in the passes of those that have some.
    is_collective: bool,
    seed: u64,
    /// The passes whose backward pass is still to come, by micro-batch and stage.
    between: HashMap<(usize, usize), Option<Forward<M>>>,
    /// The backward passes to come.
    left: usize,
    /// Measures the passes between the first forward and the last backward pass.
    pub beyond: Option<Beyond>,
}

/// A pass that has run forward.
pub(super) struct Forward<M> {
    pub model: M,
    pub pass: Pass,
    /// The scaled loss, unless the pass ends before it.
    pub loss: Option<Tensor<1>>,
    /// The parameters that were on their way when the pass began.
    pub awaited: AwaitedParams,
}

/// The batch of a pass.
pub(super) enum PassBatch<B> {
    Own(B),
    /// One that stands in, with which this rank takes part and contributes nothing.
    Spare(B),
}

impl<B: Batch, M> Passes<B, M> {
    pub fn new(batch: RankBatch<B>, items: Vec<usize>, is_collective: bool, seed: u64) -> Self {
        let RankBatch { epoch, micro_batches, .. } = batch;
        Self {
            epoch,
            micro_batches,
            items,
            is_collective,
            seed,
            between: HashMap::new(),
            left: 0,
            beyond: None,
        }
    }

    /// Returns what `pass` runs in this optimizer step, in order: forward and backward passes.
    pub fn steps(&mut self, pass: &Pass) -> Vec<PipelineStep> {
        let steps = pass.steps(self.items.len());
        self.left = steps.len() / 2;
        steps
    }

    /// Returns the forward pass of a step of the pipeline, like `pass` but for its draws and its stage, with its batch.
    /// `None` without a batch, as not even a NaN of its activations may count.
    pub fn given(
        &mut self,
        step: (usize, usize),
        pass: &Pass,
        feed: &mut Feed<B>,
    ) -> Result<Option<(PassBatch<B>, Pass)>, TrainError> {
        let ((index, chunk), epoch) = (step, self.epoch);
        let MicroBatch { batch, positions } = &mut self.micro_batches[index];
        let positions = positions.clone();
        let draws = Draws { seed: self.seed, epoch, first: positions.start as u64 };
        // The first stage of this rank takes it, and later ones read it again.
        let batch = match (batch.take(), chunk) {
            (None, 1..) if !positions.is_empty() => Some(feed.again(epoch, positions)?),
            (batch, _) => batch,
        };
        let given = match batch.filter(|batch| batch.items() > 0) {
            Some(batch) => PassBatch::Own(batch),
            None if self.items[index] > 0 && self.is_collective => PassBatch::Spare(feed.spare()?),
            None => return Ok(None),
        };
        Ok(Some((given, pass.drawing(draws).of_stage(chunk))))
    }

    /// Returns whether no pass is between forward and backward.
    pub fn are_over(&self) -> bool {
        self.between.values().all(Option::is_none)
    }

    /// Keeps a pass until its backward pass.
    pub fn hold(&mut self, step: (usize, usize), forward: Option<Forward<M>>) {
        self.between.insert(step, forward);
    }

    /// Takes the pass of a step of the pipeline to run backward, and whether it is the last one of the optimizer step.
    pub fn end(&mut self, step: (usize, usize)) -> (Option<Forward<M>>, bool) {
        self.left -= 1;
        (self.between.remove(&step).flatten(), self.left == 0)
    }
}
