//! Optimizers that update a parameter in one pass over memory.
//!
//! Burn writes an update as tensor operations, each of which reads and writes the whole parameter. Here an update is
//! one [pass](firebrick_kernels::optim) that reads and writes each of its tensors once, in place.
//!
//! A [`ModelOptimizer`] updates a model: with one of these for all parameters, with several in groups, or with an optimizer
//! of Burn. They implement [Burn's optimizer trait](burn::optim::Optimizer), so they also work in Burn's own
//! [`ModuleOptimizer`](burn::optim::ModuleOptimizer), and have the states of Burn's optimizers of the same names. On the CPU
//! and on GPUs, the pass computes in f32, whatever the parameter's dtype; gradients may be f32, bf16 or f16, and moments
//! have the parameter's dtype. In f64, Burn's own operations compute the update. On a GPU, one kernel updates
//! [many parameters together](firebrick_kernels::optim::Together).
//!
//! [`Adafactor`] and [`Lamb`] need more than one pass, since an update depends on the whole parameter: they use tensor
//! operations on every backend. [`AdamW8bit`] makes one pass over host memory, with moments of one byte each.
//!
//! # In place
//!
//! An update may write into a tensor only if nothing else holds its memory. Otherwise it copies the tensor first, and
//! [`copies`](firebrick_kernels::optim::copies) counts it. Ordinary training copies nothing; avoid a clone of the model
//! that outlives an update.
//!
//! ```text
//! model_optimizer.rs the update of a whole model, and the states of its parameters
//! param_optimizer.rs the update of one parameter, by our optimizers or by those of Burn
//! of_burn.rs         the states of Burn's ModuleOptimizer
//! states.rs          the states of parameters outside an optimizer
//! recipe.rs          OptimizerRecipe: what an optimizer says about itself
//! ranges.rs          ranges of settings that several optimizers have
//! groups.rs          parameters with their own learning rate and weight decay
//! model_groups.rs    the parameters of a model by their settings, from which an optimizer is built
//! layer_decay.rs     learning rates that decrease from the head to the embeddings
//! adamw.rs           AdamW
//! adafactor.rs       Adafactor
//! adagrad.rs         Adagrad
//! lamb.rs            LAMB
//! adamw_8bit.rs      AdamW with 8-bit moments
//! lion.rs            Lion
//! sgd.rs             Sgd
//! ```

mod adafactor;
mod adagrad;
mod adamw;
mod adamw_8bit;
mod groups;
mod lamb;
mod layer_decay;
mod lion;
mod model_groups;
mod model_optimizer;
mod of_burn;
mod param_optimizer;
mod ranges;
mod recipe;
mod sgd;
mod states;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::registry::{Named, Registered, Registry};

pub use adafactor::{Adafactor, AdafactorState};
pub use adagrad::{Adagrad, AdagradState};
pub use adamw::AdamW;
pub use adamw_8bit::{AdamW8bit, AdamW8bitState};
pub use groups::{Group, Groups, GroupsError};
pub use lamb::{Lamb, LambState};
pub use lion::Lion;
pub use model_groups::{Alike, ModelGroups};
pub use model_optimizer::ModelOptimizer;
use param_optimizer::{Fused, OfBurn, ParamOptimizer};
pub use recipe::{HeldParam, OptimizerRecipe};
pub use sgd::{Sgd, SgdState};
pub use states::{OptimizerStates, ParamState};

/// Any [registered](Optimizers) optimizer: `AdamW(weight_decay: 0.1)`.
///
/// ```
/// use firebrick_strategies::optim::{AdamW, BoxedOptimizer};
///
/// let optimizer = BoxedOptimizer::new("AdamW", AdamW::new().weight_decay(0.1));
/// assert_eq!(optimizer.matrix_decay(), 0.1);
/// ```
pub type BoxedOptimizer = Named<dyn OptimizerRecipe>;

/// The optimizers that a run file can name. [`OptimizerRecipe`] has an example of your own.
pub type Optimizers = Registry<dyn OptimizerRecipe>;

impl BoxedOptimizer {
    /// Boxes a recipe that is registered by this name.
    pub fn new<R: OptimizerRecipe + PartialEq + Serialize + 'static>(name: &'static str, recipe: R) -> Self {
        let recipe = Arc::new(recipe);
        Self::of(name, recipe.clone(), recipe)
    }
}

impl Optimizers {
    /// Registers an optimizer by a name; a later one replaces an earlier one of the same name.
    pub fn optimizer<R>(self, name: &'static str) -> Self
    where
        R: OptimizerRecipe + PartialEq + Serialize + DeserializeOwned + 'static,
    {
        self.with(name, BoxedOptimizer::new::<R>)
    }
}

impl Registered for dyn OptimizerRecipe {
    const KIND: &'static str = "an optimizer";

    fn built_in() -> Optimizers {
        Optimizers::default()
            .optimizer::<AdamW>("AdamW")
            .optimizer::<AdamW8bit>("AdamW8bit")
            .optimizer::<Lion>("Lion")
            .optimizer::<Sgd>("Sgd")
            .optimizer::<Adafactor>("Adafactor")
            .optimizer::<Lamb>("Lamb")
            .optimizer::<Adagrad>("Adagrad")
    }
}
