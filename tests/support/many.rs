//! A run on several ranks, and the same on one.

use burn::optim::AdamWConfig;
use firebrick::optim::{AdamW, Group, Groups, ModelOptimizer};
use firebrick::strategies::Composition;
use firebrick::{Accumulate, Clip, Data, Report, Schedule, StepNumbers, Trainer, World};
use firebrick_models::Gpt;

use super::{Rows, gpt_of};

/// Returns the largest difference, relative to the number expected.
pub fn furthest(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    assert!(found.iter().all(|x| x.is_finite()), "{found:?}");
    found.iter().zip(expected).map(|(found, expected)| (found / expected - 1.0).abs()).fold(0.0, f64::max)
}

/// The results of a run.
pub struct Outcome {
    pub losses: Vec<f64>,
    pub parameters: Vec<f32>,
    pub steps: Vec<StepNumbers>,
    pub report: Report,
}

/// A run of the small transformer on ragged rows: the settings that all rows of a grid share.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Rows of an epoch.
    pub rows: usize,
    /// Samples of a global batch. It grows to a number that ranks and micro-batches divide.
    pub global: usize,
    pub steps: u64,
    pub dropout: f64,
    pub seed: u64,
    pub rate: f64,
    /// Creates the optimizer for the model.
    pub optimizer: fn(&Gpt) -> ModelOptimizer,
    /// Whether the same rows are evaluated at the end of each epoch.
    pub evaluated: bool,
    /// So many ranks train on the same samples.
    pub per_batch: usize,
    /// The blocks of the model.
    pub layers: usize,
}

impl Default for Setting {
    /// An epoch of 21 rows ends in a global batch of 5, which 2, 3 and 4 ranks cannot share evenly.
    fn default() -> Self {
        // Past the end of an epoch, and few if a processor emulates the GPU.
        let steps = if super::is_cpu() { 20 } else { 4 };
        let optimizer = |_: &Gpt| optimizer();
        Self {
            rows: 21,
            global: 8,
            steps,
            dropout: 0.1,
            seed: 11,
            rate: 2e-3,
            optimizer,
            evaluated: false,
            per_batch: 1,
            layers: 3,
        }
    }
}

impl Setting {
    /// Returns the setting with a global batch that this many ranks and micro-batches divide.
    pub fn cut_for(&self, ranks: usize, micro_batches: usize) -> Self {
        Self { global: self.global.next_multiple_of(ranks * micro_batches), ..self.clone() }
    }

    /// Runs on this many ranks, with each rank's part of a global batch cut into this many micro-batches. If there are
    /// several, one of the `strategies` must accumulate them.
    pub fn run<S: Composition<Gpt>>(&self, ranks: usize, micro_batches: usize, strategies: S) -> Outcome {
        let device = super::device().autodiff();
        let shares = ranks / self.per_batch * micro_batches;
        let micro = self.global / shares;
        assert_eq!(micro * shares, self.global, "a global batch is cut without a rest");
        let data = Data::new(Rows::ragged(self.rows)).micro_batch(micro);
        let data = if self.evaluated { data.valid(Rows::ragged(self.rows)) } else { data };
        let (sender, steps) = std::sync::mpsc::channel();
        let model = gpt_of(self.layers, self.dropout, &device);
        let optimizer = (self.optimizer)(&model);
        let trained = Trainer::new()
            .over(World::threads(ranks))
            .with(strategies)
            .seed(self.seed)
            .steps(self.steps)
            .observe(move |step: &StepNumbers| sender.send(step.clone()).unwrap())
            .fit(model, optimizer, Schedule::constant(self.rate), data)
            .unwrap_or_else(|error| panic!("{self:?} on {ranks} ranks: {error}"));
        let steps: Vec<_> = steps.into_iter().collect();
        Outcome {
            losses: steps.iter().map(|step| step.loss).collect(),
            parameters: super::parameters(&trained.model),
            steps,
            report: trained.report,
        }
    }

    /// Runs on one rank with the same global batches, without the strategies for several ranks.
    pub fn alone(&self) -> Outcome {
        self.run(1, 1, None::<Clip>)
    }
}

/// Returns how far losses and parameters of two runs are apart, relative to the largest.
pub fn apart(found: &Outcome, expected: &Outcome) -> (f64, f64) {
    assert_eq!(found.losses.len(), expected.losses.len());
    let losses = found.losses.iter().zip(&expected.losses);
    let losses = losses.map(|(found, expected)| (found - expected).abs() / expected).fold(0.0, f64::max);
    (losses, super::difference(&found.parameters, &expected.parameters))
}

/// An optimizer with a large epsilon, because a smaller one turns the rounding of a gradient near 0 into a whole step.
pub fn optimizer() -> ModelOptimizer {
    AdamWConfig::new().with_epsilon(1e-3).with_weight_decay(0.1).init().into()
}

/// Returns `Accumulate` if there is something to accumulate.
pub fn accumulate(micro_batches: usize) -> Option<Accumulate> {
    (micro_batches > 1).then_some(Accumulate(micro_batches))
}

/// The same with other rates and weight decays for blocks, embeddings and norms.
pub fn grouped(model: &Gpt) -> ModelOptimizer {
    let groups = Groups::new()
        .weight_decay(0.1)
        .layer_decay(0.7)
        .with(Group::of(["*norm*", "blocks.0.*.bias"]).lr_scale(2.0).weight_decay(0.3))
        .with(Group::of(["tokens", "blocks.1"]).lr_scale(0.5));
    groups.init(model, AdamW::new().epsilon(1e-3), AdamW::weight_decay).unwrap()
}
