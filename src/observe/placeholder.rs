//! What burn-train asks for and Firebrick has no use for: a model and loaders.

use std::sync::Arc;

use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use burn::train::{InferenceStep, TrainOutput, TrainStep};

use crate::observe::readings::Readings;

/// A placeholder for the model of burn-train. The real model lives in the training loop, because burn-train's learner
/// has no place for a master next to a replica. The placeholder has the types of the events and the one parameter that
/// burn-train looks for.
#[derive(Module, Debug)]
pub(crate) struct PlaceholderModel {
    anchor: Param<Tensor<1>>,
}

impl PlaceholderModel {
    pub fn new(device: &Device) -> Self {
        Self { anchor: Param::from_tensor(Tensor::zeros([1], device)) }
    }
}

impl TrainStep for PlaceholderModel {
    type Input = ();
    type Output = Readings;

    /// Never called: Firebrick runs its own training loop.
    fn step(&self, (): ()) -> TrainOutput<Readings> {
        let grads = self.anchor.val().backward();
        TrainOutput::new(self, grads, Readings::of_evaluation(0.0, 0))
    }
}

impl InferenceStep for PlaceholderModel {
    type Input = ();
    type Output = Readings;

    /// Never called: Firebrick runs its own training loop.
    fn step(&self, (): ()) -> Readings {
        Readings::of_evaluation(0.0, 0)
    }
}

/// An empty loader for burn-train. Firebrick's loop draws its own windows.
pub(crate) struct NoBatches;

impl DataLoader<()> for NoBatches {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<()> + 'a> {
        Box::new(NoBatches)
    }

    fn num_items(&self) -> usize {
        0
    }

    fn to_device(&self, _: &Device) -> Arc<dyn DataLoader<()>> {
        Arc::new(NoBatches)
    }

    fn slice(&self, _: usize, _: usize) -> Arc<dyn DataLoader<()>> {
        Arc::new(NoBatches)
    }
}

impl Iterator for NoBatches {
    type Item = Result<(), DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        None
    }
}

impl DataLoaderIterator<()> for NoBatches {
    fn progress(&self) -> Progress {
        Progress::new(0, 0, None)
    }
}
