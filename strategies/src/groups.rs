//! The groups of methods of a stage, as types: a stage lists those that it implements.
//!
//! Each name stands for one trait: `Collect` for [`CollectStage`](crate::CollectStage), and so on.

/// The stage acts on gradients: [`CollectStage`](crate::CollectStage).
#[derive(Debug)]
pub enum Collect {}

/// The stage has values that must survive a restart: [`SaveStage`](crate::SaveStage).
#[derive(Debug)]
pub enum Save {}

/// The stage maps between master and replica: [`MasterStage`](crate::MasterStage).
#[derive(Debug)]
pub enum Master {}

/// The stage divides the master among the ranks: [`ShardStage`](crate::ShardStage).
#[derive(Debug)]
pub enum Shard {}

/// The stage keeps other weights to evaluate and to save: [`AverageStage`](crate::AverageStage).
#[derive(Debug)]
pub enum Average {}

/// The stage acts on whole windows: [`WindowStage`](crate::WindowStage).
#[derive(Debug)]
pub enum Window {}

/// A list of groups that includes `G`.
#[diagnostic::on_unimplemented(
    message = "a stage implements the group `{G}`, which its `Groups` do not list",
    label = "`type Groups` of the stage lists only `{Self}`",
    note = "add `{G}` to the stage's `type Groups`"
)]
pub trait Includes<G> {}
