//! What a strategy is, and how several work together. It knows no strategy.
//!
//! ```text
//! strategy.rs          Strategy: the recipe of a technique
//! composition.rs       Composition: one strategy or several, as the trainer uses them; Composed, a list of them
//! named_strategies.rs  strategies by the names that they have in run files
//! effects.rs           Effects: what a strategy does to gradients, memory and traffic, as far as others must know
//! order.rs             Order: the effects of a composition, in the order in which gradients pass
//! adaptation/          the changes that strategies make to a model before training, and how they are undone
//! setup.rs             what a strategy sees when it starts
//! stage.rs             Stage: the live state of a strategy
//! stages.rs            Stages: the live state of a composition, the only code that runs through its stages
//! state.rs             what a stage saves and restores, and a float in it
//! ```

mod adaptation;
mod composition;
pub mod effects;
mod named_strategies;
mod order;
mod setup;
mod stage;
mod stages;
mod state;
mod strategy;

pub(crate) use adaptation::ReadWhole;
pub use adaptation::{Adaptation, FactorValues, PackedBase, StartingFactors, params_of};
pub use composition::{Composed, Composition};
pub use effects::{Effects, Offloads, OnDisk};
pub use named_strategies::{NamedStrategy, Strategies};
pub use order::Order;
pub use setup::Setup;
pub use stage::{Publishes, Stage};
pub use stages::Stages;
pub use state::{SavedNumber, SavedStates, StageState};
pub use strategy::{Strategy, StrategyRecipe};
