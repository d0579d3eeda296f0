//! What a run leaves.

use std::path::PathBuf;

use firebrick_datasets::Cursor;

use crate::report::Report;
use crate::step::StepNumbers;

/// What [`Trainer::fit`](crate::Trainer::fit) returns.
#[derive(Debug)]
pub struct Trained<M> {
    /// The whole master, outside autodiff: in f32, or in bf16 under `Amp::pure_bf16()`.
    pub model: M,
    /// Its average over the updates, in f32, under [`Ema`](crate::Ema): what was evaluated.
    pub averaged: Option<M>,
    /// The run in numbers.
    pub report: Report,
    /// Where the weights of the lowest validation loss are, if the run has an output folder and
    /// was evaluated.
    pub best: Option<PathBuf>,
    /// Where the stream of samples stands: a later run that starts here goes on with the samples
    /// that this one has not seen.
    pub cursor: Cursor,
    /// The numbers of the last step.
    pub last_step: StepNumbers,
}
