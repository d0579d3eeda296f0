//! Optimizers that update a parameter in one pass over memory.
//!
//! Burn writes an update as tensor operations, each of which reads and writes the whole parameter. Here an update is
//! one [pass](firebrick_kernels::optim) that reads and writes each of its tensors once, in place.
//!
//! They implement [Burn's optimizer trait](burn::optim::Optimizer) and work in a
//! [`ModuleOptimizer`](burn::optim::ModuleOptimizer), alone or in groups. They read and write the records of Burn's
//! optimizers of the same names. On the CPU and on GPUs, the pass computes in f32, whatever the parameter's dtype;
//! gradients may be f32, bf16 or f16, and moments have the parameter's dtype. In f64, Burn's own operations compute the
//! update. On a GPU, one kernel updates [many parameters together](firebrick_kernels::optim::together).
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
//! recipe.rs       OptimizerRecipe: what an optimizer says about itself
//! ranges.rs       ranges of settings that several optimizers have
//! groups.rs       parameters with their own learning rate and weight decay
//! model_groups.rs the parameters of a model by their settings, from which an optimizer is built
//! layer_decay.rs  learning rates that decrease from the head to the embeddings
//! deferred.rs     an optimizer whose updates may be launched together, and whose state is read at once
//! scaled.rs       an optimizer at a multiple of the learning rate, whose state is restored where it is needed
//! adamw.rs        AdamW
//! adafactor.rs    Adafactor
//! adagrad.rs      Adagrad
//! lamb.rs         LAMB
//! adamw_8bit.rs   AdamW with 8-bit moments
//! lion.rs         Lion
//! sgd.rs          Sgd
//! ```

mod adafactor;
mod adagrad;
mod adamw;
mod adamw_8bit;
mod deferred;
mod groups;
mod lamb;
mod layer_decay;
mod lion;
mod model_groups;
mod ranges;
mod recipe;
mod scaled;
mod sgd;
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
use deferred::{Deferrable, Deferred};
pub use deferred::{on_host, retract};
pub use groups::{Group, Groups, GroupsError};
pub use lamb::{Lamb, LambState};
pub use lion::Lion;
pub use model_groups::{Alike, ModelGroups};
pub use recipe::{HeldParam, OptimizerRecipe};
use scaled::of_all;
pub use scaled::{Scaled, restored_on};
pub use sgd::{Sgd, SgdState};

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
