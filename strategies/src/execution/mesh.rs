//! Divides the ranks into axes.

use burn::module::Module;
use serde::{Deserialize, Serialize};

use crate::{Adaptation, Effects, SettingError, Setup, Stages, Strategy, StrategyError, StrategyRecipe};

const NAME: &str = "Mesh";

/// Divides the ranks into axes: those of a tensor axis share the layers of the model, those of a context axis share the tokens of
/// each sample, and what is left over is the data axis, whose ranks train on samples of their own.
///
/// Of `t` ranks of a tensor axis and `c` of a context axis, rank `t (c·i + k) + j` has part `j` of the layers and part `k` of the
/// tokens of the samples of data rank `i`: ranks that share layers are neighbours.
///
/// # Tensor
///
/// With a [tensor](Self::tensor) of `t`, each rank has 1/t of the layers that the model's [plan](crate::TensorPlan) names, with
/// their gradients and optimizer state, and computes 1/t of them (Shoeybi et al., 2019, arXiv:1909.08053). A block's attention
/// sums what its heads return over the ranks, and so does its feed-forward layer; in the backward pass they sum the
/// gradients of their inputs. A rank sends `2 (t-1)/t` elements in a sum of one. The ranks compute what no layer of the plan computes, such as
/// norms, from the same numbers. The optimizer must treat elements independently, as for [`Zero`](crate::Zero).
///
/// # Context
///
/// With a [context](Self::context) of `c`, each rank computes two of `2c`
/// chunks of each row, one from the front and one from the back, so that causal attention costs all of them the same
/// (zigzag; Llama Team, 2024, arXiv:2407.21783, section 3.3.2). Before an attention, they gather one another's keys and
/// values; in the backward pass, their gradients are summed and scattered. Activations take 1/c of the memory, but for the
/// keys and values of the whole row, which an attention keeps: [`Recompute`](crate::Recompute) leaves those of one block at
/// a time. When a layer gathers keys and values of `w` elements per token, a rank sends `w (c-1)/c` elements for each token of
/// the row, and as many in the backward pass.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mesh {
    #[serde(skip_serializing_if = "is_one")]
    context: usize,
    #[serde(skip_serializing_if = "is_one")]
    tensor: usize,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_one(ranks: &usize) -> bool {
    *ranks == 1
}

impl Default for Mesh {
    fn default() -> Self {
        Self { context: 1, tensor: 1 }
    }
}

impl Mesh {
    /// Creates a mesh whose ranks are all on the data axis.
    pub fn new() -> Self {
        Self::default()
    }

    /// Divides the tokens of each sample among this many ranks. Default: 1.
    pub fn context(self, ranks: usize) -> Self {
        Self { context: ranks, ..self }
    }

    /// Divides the layers of the model among this many ranks, by its [plan](crate::TensorPlan). Default: 1.
    pub fn tensor(self, ranks: usize) -> Self {
        Self { tensor: ranks, ..self }
    }

    /// Checks whether its axes divide so many ranks.
    ///
    /// # Errors
    ///
    /// An axis does not.
    pub fn check_ranks(self, ranks: usize) -> Result<(), StrategyError> {
        let require = |setting, axis: usize, ranks: usize, of: &str| {
            let expected = format!("a divisor of the number of ranks{of}, which is {ranks}");
            SettingError::require(axis > 0 && ranks.is_multiple_of(axis), setting, expected, axis)
                .map_err(|error| StrategyError::setting(NAME, error))
        };
        require("tensor", self.tensor, ranks, "")?;
        require(
            "context",
            self.context,
            ranks / self.tensor,
            if self.tensor > 1 { " over `tensor`" } else { "" },
        )
    }
}

impl StrategyRecipe for Mesh {
    fn effects(&self) -> Effects {
        Effects { context: Some(self.context), tensor: Some(self.tensor), ..Effects::none(NAME) }
    }

    fn check(&self) -> Result<(), SettingError> {
        SettingError::require(self.context > 0, "context", "at least 1", self.context)?;
        SettingError::require(self.tensor > 0, "tensor", "at least 1", self.tensor)
    }
}

impl<M: Module> Strategy<M> for Mesh {
    fn adapted(&self, model: M, adaptation: &mut Adaptation) -> Result<M, StrategyError> {
        let Some(world) = adaptation.world().filter(|_| self.tensor > 1) else { return Ok(model) };
        self.check_ranks(world.size())?;
        let ranks = world.split(|rank| rank / self.tensor);
        adaptation.divide(model, ranks)
    }

    fn stages(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        if let Some(parts) = setup.tensor().cloned() {
            setup.segments_mut().divide_layers(parts);
        }
        let world = setup.world().clone();
        Self { tensor: 1, ..*self }.check_ranks(world.size())?;
        if self.context > 1 {
            setup.segments_mut().divide_context(world.split(|rank| rank / self.context));
        }
        // It acts in the pass alone.
        Ok(Stages::none())
    }
}
