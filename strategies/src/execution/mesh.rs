//! Divides the ranks into axes.

use burn::module::Module;
use serde::{Deserialize, Serialize};

use crate::{Effects, SettingError, Setup, Stages, Strategy, StrategyError, StrategyRecipe};

const NAME: &str = "Mesh";

/// Divides the ranks into axes: those of a context axis share the tokens of each sample, and what is left over is the data
/// axis, whose ranks train on samples of their own.
///
/// With a [context](Self::context) of `c`, ranks `c·i` to `c·i + c - 1` read the same samples. Each computes two of `2c`
/// chunks of each row, one from the front and one from the back, so that causal attention costs all of them the same
/// (zigzag; Llama Team, 2024, arXiv:2407.21783, section 3.3.2). Before an attention, they gather one another's keys and
/// values; in the backward pass, their gradients are summed and scattered. Activations take 1/c of the memory, but for the
/// keys and values of the whole row, which an attention keeps: [`Recompute`](crate::Recompute) leaves those of one block at
/// a time. When a layer gathers keys and values of `w` elements per token, a rank sends `w (c-1)/c` elements for each token of
/// the row, and as many in the backward pass.
///
/// [`Zero`](crate::Zero) sums the gradients over all ranks of both axes, and shards state over all of them. The result is
/// the same as without a mesh, up to the rounding of sums. Checkpoints are the same too, so that a run resumes with any
/// other mesh of the same number of samples in an update.
///
/// A model divides the tokens itself, by [`Pass::context_columns`](crate::Pass::context_columns): the causal and masked
/// language models of `firebrick-models` do, except DeBERTa. A step of any other model is an error.
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
    context: usize,
}

impl Default for Mesh {
    fn default() -> Self {
        Self { context: 1 }
    }
}

impl Mesh {
    /// Creates a mesh whose ranks are all on the data axis.
    pub fn new() -> Self {
        Self::default()
    }

    /// Divides the tokens of each sample among this many ranks. Default: 1.
    pub fn context(self, ranks: usize) -> Self {
        Self { context: ranks }
    }

    /// Checks whether its axes divide so many ranks.
    ///
    /// # Errors
    ///
    /// An axis does not.
    pub fn check_ranks(self, ranks: usize) -> Result<(), StrategyError> {
        let fits = self.context > 0 && ranks.is_multiple_of(self.context);
        let expected = format!("a divisor of the number of ranks, which is {ranks}");
        SettingError::require(fits, "context", expected, self.context)
            .map_err(|error| StrategyError::setting(NAME, error))
    }
}

impl StrategyRecipe for Mesh {
    fn effects(&self) -> Effects {
        Effects { context: Some(self.context), ..Effects::none(NAME) }
    }

    fn check(&self) -> Result<(), SettingError> {
        SettingError::require(self.context > 0, "context", "at least 1", self.context)
    }
}

impl<M: Module> Strategy<M> for Mesh {
    fn stages(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        let world = setup.world().clone();
        self.check_ranks(world.size())?;
        if self.context > 1 {
            setup.segments_mut().divide_context(world.split(|rank| rank / self.context));
        }
        // It acts in the pass alone.
        Ok(Stages::none())
    }
}
