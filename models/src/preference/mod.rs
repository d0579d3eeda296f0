//! Learning from preferences.
//!
//! ```text
//! mod.rs        Preferring: a model that learns to prefer answers
//! likelihood.rs Likelihood: the log-probabilities of answers
//! dpo.rs        the loss, and the numbers that are scored
//! family.rs     its entry in a run file, and predictions
//! ```

mod dpo;
mod family;
mod likelihood;

use burn::module::{Devices, Module, ModuleMapper, ModuleVisitor};
use burn::tensor::{Device, Tensor};
use firebrick_datasets::Batch;
use firebrick_datasets::collators::PreferenceBatch;
use firebrick_kernels::Draws;
use firebrick_strategies::Pass;

use firebrick::{Evaluation, Loss, Objective, Score};

use dpo::Compared;

pub use dpo::dpo_losses;
pub use likelihood::Likelihood;

/// A language model that learns to prefer the better of two answers, by [`Dpo`](firebrick_datasets::collators::Dpo).
///
/// It is the same model: its parameters have the paths, ids and values of the inner one. A
/// [`Trainer`](firebrick::Trainer) asks the reference model about all answers before the first update, with the
/// strategies of the run, so that no second model is held in training.
///
/// ```
/// use std::sync::Arc;
/// use burn::tensor::Device;
/// use firebrick::optim::AdamW;
/// use firebrick::{Data, Schedule, Trainer};
/// use firebrick_datasets::collators::{CausalSample, Dpo, PreferenceSample, Preferences};
/// use firebrick_datasets::{Batcher, Encoder, InMemory, Tokenizer};
/// use firebrick_models::{Gpt, GptConfig, Preferring};
///
/// // "ab" is better than "ac".
/// let row = |ids: [u32; 2]| CausalSample { ids: ids.to_vec(), prompt: 1, ..Default::default() };
/// let pair = PreferenceSample::new(row([0, 1]), row([0, 2]));
/// let encoder = Encoder::new(Arc::new(Tokenizer::characters("abc")?));
/// let pairs = Batcher::new(InMemory::new(vec![pair]), Preferences::new(encoder, Dpo::default())?);
///
/// let config = GptConfig { layers: 1, heads: 1, width: 8, dropout: 0.0, bias: true, tied: true };
/// let model = Preferring::new(config.init(3, 2, &Device::flex().autodiff()));
/// let trained = Trainer::new().steps(20).fit(
///     model,
///     AdamW::new().init()?,
///     Schedule::constant(1e-2),
///     Data::new(pairs.clone()).valid(pairs).micro_batch(1),
/// )?;
/// assert!(trained.report.best_valid_scores["reward_margin"] > 0.0);
/// let model: Gpt = trained.model.into_inner();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Preferring<M>(M);

impl<M> Preferring<M> {
    /// Creates a model that learns from preferences.
    pub fn new(model: M) -> Self {
        Self(model)
    }

    /// Returns the model itself.
    pub fn into_inner(self) -> M {
        self.0
    }
}

impl<M: Module> Module for Preferring<M> {
    fn collect_devices(&self, devices: Devices) -> Devices {
        self.0.collect_devices(devices)
    }

    fn fork(self, device: &Device) -> Self {
        Self(self.0.fork(device))
    }

    fn to_device(self, device: &Device) -> Self {
        Self(self.0.to_device(device))
    }

    fn train(self) -> Self {
        Self(self.0.train())
    }

    fn valid(&self) -> Self {
        Self(self.0.valid())
    }

    fn materialize(self) -> Self {
        Self(self.0.materialize())
    }

    fn visit<V: ModuleVisitor>(&self, visitor: &mut V) {
        self.0.visit(visitor);
    }

    fn map<V: ModuleMapper>(self, mapper: &mut V) -> Self {
        Self(self.0.map(mapper))
    }
}

impl<M: Likelihood> Preferring<M> {
    /// Returns the log-probabilities of the answers, `[2 * pairs]`, one for each row.
    fn log_probs(&self, batch: &PreferenceBatch, pass: &Pass) -> Tensor<1> {
        // Each pair has two rows, so that random numbers do not depend on how pairs are cut into batches.
        let draws = pass.draws();
        let pass = pass.drawing(Draws { first: draws.first.wrapping_mul(2), ..draws });
        self.0.log_probs(batch.rows(), &pass)
    }
}

impl<M: Likelihood> Objective<PreferenceBatch> for Preferring<M> {
    /// Without answers of the reference model, they count as 0.
    fn loss(&self, batch: PreferenceBatch, pass: &Pass) -> Loss {
        if batch.items() == 0 {
            return Loss::of_nothing(pass);
        }
        Compared::of(self.log_probs(&batch, pass), &batch).loss()
    }

    fn evaluate(&self, batch: PreferenceBatch, pass: &Pass) -> Evaluation {
        if batch.items() == 0 {
            return Loss::of_nothing(pass).into();
        }
        let compared = Compared::of(self.log_probs(&batch, pass), &batch);
        Evaluation { counts: compared.counts(), loss: compared.loss() }
    }

    /// Means over pairs, as trl's: the rewards `reward_chosen` and `reward_rejected`, β times the log-probability of an
    /// answer less that of the reference model; their difference `reward_margin`; `reward_accuracy`, the share of pairs
    /// whose chosen answer has the larger reward; and the log-probabilities `logp_chosen` and `logp_rejected`.
    fn scores(&self, counts: &[f64]) -> Vec<Score> {
        dpo::scores(counts)
    }

    fn reference(&self, batch: PreferenceBatch, pass: &Pass) -> Option<Tensor<1>> {
        Some(self.log_probs(&batch, pass))
    }
}
