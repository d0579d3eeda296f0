//! A run in parts: saved, and resumed from a checkpoint.

use std::path::Path;
use std::sync::Arc;

use firebrick::checkpoints::{Checkpoint, Folder};
use firebrick::optim::ModelOptimizer;
use firebrick::strategies::Composition;
use firebrick::{
    Checkpoints, Data, Interrupter, Report, Resume, Schedule, StepNumbers, TrainError, Trainer, World,
};
use firebrick_models::Gpt;

use super::many::optimizer;
use super::{Rows, gpt, map_waves};

/// Rows of an epoch. With a global batch of 8 rows, the third one has 5 of them.
const ROWS: usize = 21;

/// Updates of the run: 10 updates of 8 rows, over more than three epochs, each with an evaluation.
pub const STEPS: u64 = 10;

/// The results of a part of a run.
pub struct Part {
    /// The loss of each step of this part.
    pub losses: Vec<f64>,
    pub parameters: Vec<f32>,
    pub report: Report,
}

/// Where a part starts, and how it ends.
#[derive(Clone)]
pub struct Way {
    pub ranks: usize,
    /// So many ranks train on the same samples.
    pub per_batch: usize,
    pub micro_batches: usize,
    /// Samples of an update.
    pub global: usize,
    pub schedule: Schedule,
    /// Creates the optimizer for the model.
    pub optimizer: fn(&Gpt) -> ModelOptimizer,
    pub steps: u64,
    pub resume: Option<Resume>,
    pub checkpoints: Checkpoints,
    /// Interrupts after this many updates, or one later if this part starts there; 0 interrupts before the start.
    pub stop_at: Option<u64>,
    pub allow_changes: bool,
    pub seed: u64,
    /// Called with the number of updates, while the next one is made.
    pub observer: Arc<dyn Fn(u64) + Send + Sync>,
}

impl Way {
    pub fn on(ranks: usize, micro_batches: usize) -> Self {
        Self {
            ranks,
            per_batch: 1,
            micro_batches,
            global: 8,
            schedule: Schedule::cosine(4e-3).warmup(1),
            optimizer: |_| optimizer(),
            steps: STEPS,
            resume: None,
            checkpoints: Checkpoints::every(1).keep_every(1),
            stop_at: None,
            allow_changes: false,
            seed: 11,
            observer: Arc::new(|_| {}),
        }
    }

    pub fn observed(self, observer: impl Fn(u64) + Send + Sync + 'static) -> Self {
        Self { observer: Arc::new(observer), ..self }
    }

    pub fn from(self, resume: Resume) -> Self {
        Self { resume: Some(resume), ..self }
    }

    /// Trains. A part that resumes starts with other weights, which must not matter.
    pub fn train<S: Composition<Gpt>>(&self, output: &Path, strategies: S) -> Result<Part, TrainError> {
        let device = super::device().autodiff();
        let micro = self.global / (self.ranks / self.per_batch) / self.micro_batches;
        let data = Data::new(Rows::ragged(ROWS)).valid(Rows::ragged(ROWS)).micro_batch(micro);
        let (sender, losses) = std::sync::mpsc::channel();
        let interrupter = Interrupter::new();
        let (stop, stop_at) = (interrupter.clone(), self.stop_at);
        if stop_at == Some(0) {
            stop.stop(None);
        }
        let trainer = Trainer::new()
            .over(World::threads(self.ranks))
            .with(strategies)
            .seed(self.seed)
            .steps(self.steps)
            .output(output)
            .checkpoints(self.checkpoints)
            .allow_changes(self.allow_changes)
            .interrupter(interrupter);
        let (trainer, model) = match &self.resume {
            None => (trainer, gpt(0.1, &device)),
            Some(resume) => (trainer.resume(resume.clone()), map_waves(gpt(0.1, &device))),
        };
        let optimizer = (self.optimizer)(&model);
        let observer = self.observer.clone();
        let trained = trainer
            .observe(move |step: &StepNumbers| {
                observer(step.step);
                sender.send(step.loss).unwrap();
                // A step's numbers arrive during the next step.
                if stop_at.is_some_and(|at| step.step + 1 >= at) {
                    stop.stop(Some("enough"));
                }
            })
            .fit(model, optimizer, self.schedule.clone(), data)?;
        Ok(Part {
            losses: losses.into_iter().collect(),
            parameters: super::parameters(&trained.model),
            report: trained.report,
        })
    }
}

/// Returns the checkpoint of a step.
pub fn saved(output: &Path, step: u64) -> std::path::PathBuf {
    Folder::new(output.join("checkpoints")).checkpoint(step)
}

/// Returns the checksums of all tensor files: parameters, moments and averages of every rank.
pub fn sums(checkpoint: &Path) -> Vec<(String, String)> {
    let checkpoint = Checkpoint::open(checkpoint).unwrap();
    let files = checkpoint.manifest().files.iter().filter(|file| file.name.ends_with(".safetensors"));
    files.map(|file| (file.name.clone(), file.sum.to_string())).collect()
}
