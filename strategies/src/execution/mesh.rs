//! Divides the ranks into axes.

use std::sync::Arc;

use burn::module::Module;
use serde::{Deserialize, Serialize};

use crate::{
    Adaptation, Effects, Grads, Offloads, Outcome, Pipeline, PipelineSchedule, Pipelined, SettingError,
    Setup, Stage, StageBalance, Stages, Strategy, StrategyError, StrategyRecipe,
};

const NAME: &str = "Mesh";

/// Divides the ranks into axes: those of a tensor axis share the layers of the model, those of a pipeline axis its blocks, those of a
/// context axis share the tokens of each sample, and what is left over is the data axis, whose ranks train on samples of their own.
///
/// Of `t` ranks of a tensor axis, `p` of a pipeline axis and `c` of a context axis, rank `t (p (c·i + k) + s) + j` has part `j` of the
/// layers of stage `s`, and part `k` of the tokens of the samples of data rank `i`: ranks that share layers are neighbours.
///
/// # Tensor
///
/// With a [tensor](Self::tensor) of `t`, each rank has 1/t of the layers that the model's [plan](crate::TensorPlan) names, with
/// their gradients and optimizer state, and computes 1/t of them (Shoeybi et al., 2019, arXiv:1909.08053). Between these layers, such
/// as in norms and dropout, each rank computes 1/t of the positions of a batch (sequence parallelism: Korthikanti et al., 2022,
/// arXiv:2205.05198). A block's attention gathers the positions of all ranks and scatters the sums of what its heads return, and
/// so does its feed-forward layer; in the backward pass, gradients go the other way, and what the first layers read is gathered again
/// in place of being kept. A rank sends `(t-1)/t` elements in each of these calls for
/// one of all positions. The optimizer must treat elements independently, as for [`Zero`](crate::Zero).
///
/// The models of `firebrick-models` divide positions. Your own does by [`Pass::divide_sequence`](crate::Pass::divide_sequence);
/// without it, each rank computes the same of all positions between the layers.
///
/// # Pipeline
///
/// With a [pipeline](Self::pipeline) of `p`, each rank has some of the model's blocks, one after the other, with their gradients and
/// optimizer state. They hand the states of a micro-batch of [`Accumulate`](crate::Accumulate) from one to the next, and the
/// gradients of these states back, in the order of a [schedule](Self::schedule). A rank sends the states of each
/// micro-batch once and their gradients once: `2 b n w` elements for `b` samples of `n` tokens of width `w`, and half of that
/// at both ends. The first and the last rank wait for the others (p-1)/m of the time in which they compute `m` micro-batches: choose `m`
/// of at least `4 p`. Parameters outside blocks, such as embeddings, are on each rank of the pipeline, which sum their gradients
/// once per update, so that a tied embedding is one (Narayanan et al., 2021, arXiv:2104.04473).
///
/// A block is an element of the model's lists that runs in [`Pass::segment`](crate::Pass::segment) and reads what the block before
/// returns: all families of `firebrick-models` but the encoder-decoders have such blocks. An evaluation runs the whole model
/// on each rank, which the others send the parameters of one block at a time.
///
/// # Context
///
/// With a [context](Self::context) of `c`, each rank computes two of `2c`
/// chunks of each row, one from the front and one from the back, so that causal attention costs all of them the same
/// (zigzag; Llama Team, 2024, arXiv:2407.21783, section 3.3.2). Keys and values go around in a ring, and parts of an
/// attention are joined (Liu et al., 2023, arXiv:2310.01889): activations take 1/c of the memory. When a layer has keys and values of `w`
/// elements per token, a rank sends `w (c-1)/c` elements for each token of the row, as many in the backward pass, and `w`
/// gradients in f32. On GPUs, scores that are capped are those of gathered keys and values:
/// [`Pass::attention`](crate::Pass::attention).
///
/// A model divides the tokens itself, by [`Pass::context_columns`](crate::Pass::context_columns): the causal and masked
/// language models of `firebrick-models` do, except DeBERTa. A step of any other model is an error.
///
/// # Together
///
/// [`Zero`](crate::Zero) sums the gradients over all ranks that hold the same part of the model, and shards state over them. The
/// result is the same as without a mesh, up to the rounding of sums. Checkpoints are the same too, so that a run resumes with
/// any other mesh of the same number of samples in an update.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::Device};
/// use firebrick_strategies::{Communicator, Composition, Mesh, Setup};
///
/// let device = Device::flex();
/// let model = LinearConfig::new(3, 2).init(&device);
/// let mut setup = Setup::new(&model, &device).among(Communicator::rehearsal(4));
/// Mesh::new().context(2).start(&mut setup)?;
/// let columns = setup.into_pass().context_columns(16).unwrap();
/// // The first of four chunks, and the last.
/// assert_eq!(*columns.own, [0, 1, 2, 3, 12, 13, 14, 15]);
/// # Ok::<(), firebrick_strategies::StrategyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mesh {
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<usize>,
    #[serde(skip_serializing_if = "is_one")]
    context: usize,
    #[serde(skip_serializing_if = "is_one")]
    tensor: usize,
    #[serde(skip_serializing_if = "is_one")]
    pipeline: usize,
    #[serde(skip_serializing_if = "is_default")]
    schedule: PipelineSchedule,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stages: Vec<usize>,
    #[serde(skip_serializing_if = "is_default")]
    balance: StageBalance,
}

fn is_default<T: Default + PartialEq>(setting: &T) -> bool {
    *setting == T::default()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_one(ranks: &usize) -> bool {
    *ranks == 1
}

impl Default for Mesh {
    fn default() -> Self {
        let (schedule, balance) = (PipelineSchedule::default(), StageBalance::default());
        Self { data: None, context: 1, tensor: 1, pipeline: 1, schedule, stages: Vec::new(), balance }
    }
}

impl Mesh {
    /// Creates a mesh whose ranks are all on the data axis.
    pub fn new() -> Self {
        Self::default()
    }

    /// Says how many ranks or groups of ranks have samples of their own: another number than the other axes leave is an error.
    /// Default: what they leave.
    pub fn data(self, ranks: usize) -> Self {
        Self { data: Some(ranks), ..self }
    }

    /// Divides the tokens of each sample among this many ranks. Default: 1.
    pub fn context(self, ranks: usize) -> Self {
        Self { context: ranks, ..self }
    }

    /// Divides the layers of the model among this many ranks, by its [plan](crate::TensorPlan). Default: 1.
    pub fn tensor(self, ranks: usize) -> Self {
        Self { tensor: ranks, ..self }
    }

    /// Divides the blocks of the model among this many ranks. Default: 1.
    pub fn pipeline(self, ranks: usize) -> Self {
        Self { pipeline: ranks, ..self }
    }

    /// Sets the order in which the ranks of a pipeline run micro-batches. Default: one forward and one backward pass in turns.
    pub fn schedule(self, schedule: PipelineSchedule) -> Self {
        Self { schedule, ..self }
    }

    /// Sets the number of blocks of each stage of the pipeline. Default: as many as [balance](Self::balance) them.
    pub fn stages(self, blocks: impl Into<Vec<usize>>) -> Self {
        Self { stages: blocks.into(), ..self }
    }

    /// Sets what the stages of the pipeline have about as much of. Default: parameters.
    pub fn balance(self, balance: StageBalance) -> Self {
        Self { balance, ..self }
    }

    /// Checks whether its axes divide so many ranks.
    ///
    /// # Errors
    ///
    /// An axis does not, or the [data](Self::data) axis has another number of ranks.
    pub fn check_ranks(&self, ranks: usize) -> Result<(), StrategyError> {
        let require = |setting, axis: usize, ranks: usize, of: &str| {
            let expected = format!("a divisor of the number of ranks{of}, which is {ranks}");
            SettingError::require(axis > 0 && ranks.is_multiple_of(axis), setting, expected, axis)
                .map_err(|error| StrategyError::setting(NAME, error))
        };
        require("tensor", self.tensor, ranks, "")?;
        let of = if self.tensor > 1 { " over `tensor`" } else { "" };
        require("pipeline", self.pipeline, ranks / self.tensor, of)?;
        let of = match (self.tensor > 1, self.pipeline > 1) {
            (false, true) => " over `pipeline`",
            (true, true) => " over `tensor` and `pipeline`",
            (_, false) => of,
        };
        require("context", self.context, ranks / self.ranks_per_model(), of)?;
        let left = ranks / self.ranks_per_model() / self.context;
        let expected = format!("{left}, which the other axes leave of {ranks} ranks");
        let data = self.data.unwrap_or(left);
        SettingError::require(data == left, "data", expected, data)
            .map_err(|error| StrategyError::setting(NAME, error))
    }

    fn pipelined(&self) -> Pipelined {
        let (schedule, blocks) = (self.schedule, self.stages.clone());
        Pipelined { ranks: self.pipeline, schedule, blocks, balance: self.balance }
    }

    /// The ranks that hold one copy of the model.
    fn ranks_per_model(&self) -> usize {
        self.tensor.saturating_mul(self.pipeline)
    }
}

impl StrategyRecipe for Mesh {
    fn effects(&self) -> Effects {
        Effects {
            context: Some(self.context),
            tensor: Some(self.tensor),
            pipeline: (self.pipeline > 1).then(|| self.pipelined()),
            ..Effects::none(NAME)
        }
    }

    fn check(&self) -> Result<(), SettingError> {
        SettingError::require(self.context > 0, "context", "at least 1", self.context)?;
        SettingError::require(self.tensor > 0, "tensor", "at least 1", self.tensor)?;
        SettingError::require(self.pipeline > 0, "pipeline", "at least 1", self.pipeline)?;
        if let PipelineSchedule::Interleaved(chunks) = self.schedule {
            let expected = "interleaved stages of at least 2 on each rank";
            SettingError::require(chunks > 1, "schedule", expected, chunks)?;
        }
        let is_balanced = !is_default(&self.balance);
        let expected = "no `stages` where there is a `balance`";
        let found = format!("{:?}", self.stages);
        SettingError::require(!is_balanced || self.stages.is_empty(), "stages", expected, found)?;
        let is_used =
            self.pipeline > 1 || self.stages.is_empty() && is_default(&self.schedule) && !is_balanced;
        let expected = "a `pipeline` of several ranks where there are `schedule`, `stages` or `balance`";
        SettingError::require(is_used, "pipeline", expected, self.pipeline)
    }
}

impl<M: Module> Strategy<M> for Mesh {
    fn adapted(&self, model: M, adaptation: &mut Adaptation) -> Result<M, StrategyError> {
        let each = self.ranks_per_model();
        let Some(world) = adaptation.world().filter(|_| each > 1) else { return Ok(model) };
        self.check_ranks(world.size())?;
        let ranks = world.split(|rank| rank / each);
        adaptation.divide(model, ranks, &self.pipelined())
    }

    fn stages(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        let parts = setup.parts().cloned();
        if let Some(parts) = parts.clone() {
            setup.segments_mut().divide_model(parts);
        }
        let world = setup.world().clone();
        // Those of a divided model are checked where it is divided.
        let data = self.data.filter(|_| self.ranks_per_model() == 1);
        Self { data, tensor: 1, pipeline: 1, ..self.clone() }.check_ranks(world.size())?;
        if self.context > 1 {
            setup.segments_mut().divide_context(world.split(|rank| rank / self.context));
        }
        if self.pipeline > 1 {
            if cfg!(panic = "abort") {
                return Err(StrategyError::StagesAbort);
            }
            let order = setup.order();
            if order.stage() == 3 {
                return Err(StrategyError::NotWithPipeline("stage 3 of Zero"));
            }
            if order.offloads() == Some(Offloads::Parameters) {
                return Err(StrategyError::NotWithPipeline("`Offload(parameters)`"));
            }
        }
        let Some(pipeline) = parts.as_ref().and_then(|parts| parts.pipeline()) else {
            // It acts in the pass alone.
            return Ok(Stages::none());
        };
        Ok(Stages::of(SummingStages(pipeline.clone())))
    }
}

/// Sums the gradients of what each rank of a pipeline has: of parameters outside blocks, to which several stages may add, as to a
/// tied embedding.
struct SummingStages(Arc<Pipeline>);

impl<M: Module> Stage<M> for SummingStages {
    fn name(&self) -> &'static str {
        NAME
    }

    fn collect(&mut self, master: &M, mut grads: Grads) -> Result<Outcome, StrategyError> {
        if grads.closes() {
            grads.sum_over(master, self.0.ranks(), |id| self.0.rank_of(id).is_none())?;
        }
        Ok(Outcome::Apply(grads))
    }
}
