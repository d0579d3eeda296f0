//! What burn-train lends to the training loop: the dashboard and metric files behind its events,
//! the interrupter, and early stopping.

use std::sync::Arc;

use burn::train::metric::store::EventStoreClient;
use burn::train::{
    CloneEarlyStoppingStrategy, EventProcessorError, EventProcessorTraining, Interrupter, LearnerEvent,
    SupervisedTrainingEventProcessor, TrainingComponents,
};

use crate::TrainError;
use crate::dashboard::Vessel;
use crate::gauges::Readings;

/// Takes the loop's events to burn-train, with its errors as ours; or, on ranks other than the first,
/// nowhere.
pub(crate) struct Events<'a> {
    pub interrupter: Interrupter,
    shown: Option<&'a mut Shown>,
}

/// Where events go.
pub(crate) struct Shown {
    pub processor: SupervisedTrainingEventProcessor<Vessel>,
    store: Arc<EventStoreClient>,
    early_stopping: Option<Box<dyn CloneEarlyStoppingStrategy>>,
}

impl Shown {
    pub fn new(components: TrainingComponents<Vessel>) -> Self {
        Self {
            processor: components.event_processor,
            store: components.event_store,
            early_stopping: components.early_stopping,
        }
    }
}

impl<'a> Events<'a> {
    pub fn new(interrupter: Interrupter, shown: Option<&'a mut Shown>) -> Self {
        Self { interrupter, shown }
    }

    pub fn train(&mut self, event: LearnerEvent<Readings>) -> Result<(), TrainError> {
        self.shown.as_mut().map_or(Ok(()), |shown| shown.processor.process_train(event).map_err(failed))
    }

    pub fn valid(&mut self, event: LearnerEvent<Readings>) -> Result<(), TrainError> {
        self.shown.as_mut().map_or(Ok(()), |shown| shown.processor.process_valid(event).map_err(failed))
    }

    /// Whether the validation loss has stopped falling for long enough to end the run; never where
    /// nothing is shown.
    pub fn stops_early(&mut self, round: usize) -> Result<bool, TrainError> {
        let Some(Shown { processor, store, early_stopping: Some(early_stopping) }) = &mut self.shown else {
            return Ok(false);
        };
        // The loss of this round must have arrived in the store.
        processor.flush().map_err(failed)?;
        Ok(early_stopping.should_stop(round, store))
    }
}

fn failed(error: EventProcessorError) -> TrainError {
    TrainError::Dashboard(error.to_string())
}
