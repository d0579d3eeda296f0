//! Computes padding, for comparison.

use burn::module::Module;
use serde::{Deserialize, Serialize};

use crate::{Effects, Setup, Stage, Stages, Strategy, StrategyError, StrategyRecipe};

const NAME: &str = "KeepPadding";

/// Computes the padding of batches.
///
/// Without it, a model computes the real tokens of a padded batch only, where its attention takes rows of different
/// lengths: on the CPU, in f32, bf16 and f16 ([`Pass::drops_padding`](crate::Pass::drops_padding)). The results are the
/// same up to rounding, dropout included. You need this strategy only to compare the two.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::Device};
/// use firebrick_strategies::{Composition, KeepPadding, Setup};
///
/// let device = Device::flex();
/// let model = LinearConfig::new(3, 2).init(&device);
/// let mut setup = Setup::new(&model, &device);
/// KeepPadding {}.start(&mut setup)?;
/// assert!(!setup.into_pass().drops_padding());
/// assert!(Setup::new(&model, &device).into_pass().drops_padding());
/// # Ok::<(), firebrick_strategies::StrategyError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeepPadding {}

impl StrategyRecipe for KeepPadding {
    fn effects(&self) -> Effects {
        Effects::none(NAME)
    }
}

impl<M: Module> Strategy<M> for KeepPadding {
    fn stages(&self, setup: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        setup.segments_mut().keep_padding();
        Ok(Stages::of(Keeping))
    }
}

/// The live state of [`KeepPadding`], which does nothing.
#[derive(Clone, Copy, Debug)]
struct Keeping;

impl<M> Stage<M> for Keeping {
    fn name(&self) -> &'static str {
        NAME
    }
}
