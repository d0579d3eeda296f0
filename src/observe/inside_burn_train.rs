//! Runs the training loop inside burn-train, to use its dashboard, metric files and interrupter.

use std::sync::{Arc, Mutex, PoisonError};

use burn::lr_scheduler::constant::ConstantLr;
use burn::optim::SgdConfig;
use burn::train::renderer::MetricsRenderer;
use burn::train::{
    Interrupter, Learner, SupervisedLearningStrategy, SupervisedTraining, SupervisedTrainingEventProcessor,
    TrainLoader, TrainingComponents, TrainingStrategy, ValidLoader,
};
use firebrick_datasets::Batch;

use crate::engine::training_loop::TrainingLoop;
use crate::observe::events::Events;
use crate::observe::gauges;
use crate::observe::metric_files::{MetricFiles, MetricWrites};
use crate::observe::placeholder::{NoBatches, PlaceholderModel};
use crate::output::Output;
use crate::{Objective, Score, TrainError};

/// The settings of burn-train.
pub(crate) struct InsideBurnTrain {
    pub interrupter: Interrupter,
    pub renderer: Box<dyn MetricsRenderer>,
    /// The folder of the metric files; without one, the numbers stay in memory.
    pub output: Option<Arc<Output>>,
    pub label: String,
    /// The model's scores, for their names.
    pub scores: Vec<Score>,
    /// Whether to report failed writes on standard error.
    pub tells: bool,
}

impl InsideBurnTrain {
    /// Runs the loop to its end, and returns it.
    pub fn run<M, B>(self, mut training: TrainingLoop<M, B>) -> Result<TrainingLoop<M, B>, TrainError>
    where
        M: Objective<B> + 'static,
        B: Batch,
    {
        let placeholder = PlaceholderModel::new(training.session.device());
        let (rounds, scales_loss) = (training.plan.rounds, training.session.scales_loss());
        let begun = training.begun();
        let several_ranks = training.session.world().size() > 1;
        let scores = if training.data.valid.is_some() { self.scores } else { Vec::new() };
        let inside = Arc::new(Handover(Mutex::new(Progress::Ready(Box::new(training)))));
        // Nothing is written there, because burn-train's own checkpoints and loggers are not used.
        let folder = self.output.as_ref().map(|output| output.folder().to_path_buf()).unwrap_or_default();
        let mut supervised = SupervisedTraining::new(folder, Arc::new(NoBatches), Arc::new(NoBatches))
            .with_application_logger(None)
            .with_interrupter(self.interrupter.clone())
            .with_training_strategy(TrainingStrategy::Custom(inside.clone()))
            .renderer(self.renderer)
            .num_epochs(rounds)
            .label(&self.label);
        let writes = MetricWrites::new(self.tells);
        let files = MetricFiles::new(self.output, begun, writes.clone());
        supervised = supervised.with_metric_logger(files);
        let learner = Learner::new(placeholder, SgdConfig::new().init(), ConstantLr::new(0.0));
        let result = gauges::register(supervised, scales_loss, several_ranks, &scores).launch(learner);
        // Leaves the full screen, so that later output is visible.
        drop(result.renderer);
        match inside.take() {
            Progress::Done(result) => result.map(|mut training| {
                training.history.failed_writes.extend(writes.failed());
                *training
            }),
            Progress::Ready(_) | Progress::Running => {
                Err(TrainError::Dashboard("the training loop did not run".into()))
            }
        }
    }
}

/// Wraps the loop as a burn-train strategy: burn-train runs it, and the caller takes it out afterwards.
struct Handover<M, B: Batch>(Mutex<Progress<M, B>>);

enum Progress<M, B: Batch> {
    Ready(Box<TrainingLoop<M, B>>),
    Running,
    Done(Result<Box<TrainingLoop<M, B>>, TrainError>),
}

impl<M, B: Batch> Handover<M, B> {
    fn take(&self) -> Progress<M, B> {
        self.put(Progress::Running)
    }

    fn put(&self, progress: Progress<M, B>) -> Progress<M, B> {
        let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *place, progress)
    }
}

impl<M, B> SupervisedLearningStrategy<PlaceholderModel> for Handover<M, B>
where
    M: Objective<B> + 'static,
    B: Batch,
{
    fn fit(
        &self,
        components: TrainingComponents<PlaceholderModel>,
        learner: Learner<PlaceholderModel>,
        _: TrainLoader<PlaceholderModel>,
        _: ValidLoader<PlaceholderModel>,
        _: usize,
    ) -> (PlaceholderModel, SupervisedTrainingEventProcessor<PlaceholderModel>) {
        let interrupter = components.interrupter.clone();
        let mut shown = components.event_processor;
        if let Progress::Ready(mut training) = self.take() {
            let mut events = Events::new(interrupter, Some(&mut shown));
            let result = training.run(&mut events).map(|()| training);
            self.put(Progress::Done(result));
        }
        (learner.model(), shown)
    }
}
