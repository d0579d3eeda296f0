//! What the training loop uses of burn-train: the dashboard and metric files behind its events, and the interrupter.

use burn::train::{
    EventProcessorError, EventProcessorTraining, Interrupter, LearnerEvent, SupervisedTrainingEventProcessor,
};

use crate::TrainError;
use crate::observe::placeholder::PlaceholderModel;
use crate::observe::readings::Readings;

/// Passes the loop's events to burn-train and converts its errors. On ranks other than the first, drops the events.
pub(crate) struct Events<'a> {
    pub interrupter: Interrupter,
    shown: Option<&'a mut Shown>,
}

/// The receiver of the events.
pub(crate) type Shown = SupervisedTrainingEventProcessor<PlaceholderModel>;

impl<'a> Events<'a> {
    pub fn new(interrupter: Interrupter, shown: Option<&'a mut Shown>) -> Self {
        Self { interrupter, shown }
    }

    pub fn train(&mut self, event: LearnerEvent<Readings>) -> Result<(), TrainError> {
        self.shown.as_mut().map_or(Ok(()), |shown| shown.process_train(event).map_err(failed))
    }

    pub fn valid(&mut self, event: LearnerEvent<Readings>) -> Result<(), TrainError> {
        self.shown.as_mut().map_or(Ok(()), |shown| shown.process_valid(event).map_err(failed))
    }
}

fn failed(error: EventProcessorError) -> TrainError {
    TrainError::Dashboard(error.to_string())
}
