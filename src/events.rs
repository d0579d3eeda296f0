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

/// Takes the loop's events to burn-train, with its errors as ours.
pub(crate) struct Events {
    processor: SupervisedTrainingEventProcessor<Vessel>,
    pub interrupter: Interrupter,
    store: Arc<EventStoreClient>,
    early_stopping: Option<Box<dyn CloneEarlyStoppingStrategy>>,
}

impl Events {
    pub fn new(components: TrainingComponents<Vessel>) -> Self {
        Self {
            processor: components.event_processor,
            interrupter: components.interrupter,
            store: components.event_store,
            early_stopping: components.early_stopping,
        }
    }

    /// Gives the processor back, for burn-train to end the run with.
    pub fn into_processor(self) -> SupervisedTrainingEventProcessor<Vessel> {
        self.processor
    }

    pub fn train(&mut self, event: LearnerEvent<Readings>) -> Result<(), TrainError> {
        self.processor.process_train(event).map_err(failed)
    }

    pub fn valid(&mut self, event: LearnerEvent<Readings>) -> Result<(), TrainError> {
        self.processor.process_valid(event).map_err(failed)
    }

    /// Whether the validation loss has stopped falling for long enough to end the run.
    pub fn stops_early(&mut self, round: usize) -> Result<bool, TrainError> {
        let Some(early_stopping) = &mut self.early_stopping else {
            return Ok(false);
        };
        // The loss of this round must have arrived in the store.
        self.processor.flush().map_err(failed)?;
        Ok(early_stopping.should_stop(round, &self.store))
    }
}

fn failed(error: EventProcessorError) -> TrainError {
    TrainError::Dashboard(error.to_string())
}
