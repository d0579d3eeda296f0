//! The trainer: a composition of strategies and the settings of the loop.

mod fit;
mod followed;
mod for_rank;
mod kept;
mod one_rank;
mod reference;
mod settings;
mod start;
mod trained;

use std::sync::Arc;

use burn::train::Interrupter;
use firebrick_strategies::{Composed, Composition, StartingFactors};
use firebrick_world::World;

use crate::checkpoint::RunText;
use crate::observe::observers::SharedObservers;
use crate::observe::terminal::Show;
use crate::score::{AddedScores, ScoreFn};
use crate::{Adapters, ByteSize, Checkpoints, Resume, Utilization};

use kept::Destination;
pub use settings::TrainingSettings;
pub use trained::Trained;

/// Trains an ordinary Burn model. You compose the recipe, one line per technique.
///
/// ```
/// # use burn::optim::AdamWConfig;
/// # use burn::tensor::Device;
/// # use firebrick::*;
/// # use firebrick::datasets::{Tokenizer, Windows};
/// # use firebrick_models::GptConfig;
/// # let text = "to be or not to be, that is the question; ".repeat(20);
/// # let tokenizer = Tokenizer::characters(&text)?;
/// # let data = Data::new(Windows::new(tokenizer.encode(&text)?, 8)?.shuffled(1));
/// # let config = GptConfig { layers: 1, heads: 1, width: 8, dropout: 0.0, bias: true, tied: true };
/// # let model = config.init(tokenizer.vocab_size(), 8, &Device::flex().autodiff());
/// # let optimizer = AdamWConfig::new().init();
/// # let schedule = Schedule::cosine(1e-2).warmup(2);
/// let trained = Trainer::new()
///     .with(Amp::bf16())
///     .with(Accumulate(2))
///     .with(Clip::norm(1.0))
///     .steps(10)
///     .fit(model, optimizer, schedule, data)?;
/// assert_eq!(trained.report.steps, 10);
/// # Ok::<(), TrainError>(())
/// ```
///
/// Strategies are of two kinds. [`Amp`](crate::Amp), [`Accumulate`](crate::Accumulate), [`Zero`](crate::Zero),
/// [`Offload`](crate::Offload) and [`Recompute`](crate::Recompute) say how a step is executed: without them the program trains the same
/// model to the same place, within a tolerance, if an update still sees the same batch. [`Clip`](crate::Clip),
/// [`SkipOutliers`](crate::SkipOutliers), [`Freeze`](crate::Freeze), [`Lora`](crate::Lora), [`Quantize`](crate::Quantize) and
/// [`Ema`](crate::Ema) say what is learned, and change the result.
///
/// # Order
///
/// You write the strategies in any order. Execution has one right order, which
/// [`strategies::Order`](crate::strategies::Order) states; what transforms gradients, such as [`Clip`](crate::Clip), sees those
/// of the whole update, in the order in which you write it. With Ψ parameters:
///
/// | composition | bytes held between steps | in a step |
/// |---|---|---|
/// | none | 12Ψ: 4 weights, 8 moments | 4Ψ of f32 gradients |
/// | `Accumulate(8)` | 12Ψ | 4Ψ held over the step, and 4Ψ from each backward pass |
/// | `Amp::bf16()` | 14Ψ: 4 master, 2 replica, 8 moments | 2Ψ from the backward pass become 4Ψ |
/// | `Amp::bf16()`, `Accumulate(8)` | 14Ψ | 4Ψ held over the step, and 2Ψ from each backward pass |
/// | `Amp::pure_bf16()` | 6Ψ: 2 weights, 4 moments | 2Ψ of bf16 gradients |
/// | `Ema::new(0.999)` | 16Ψ: 4 weights, 4 average, 8 moments | 4Ψ of f32 gradients |
///
/// [`Recompute`](crate::Recompute) acts on the activations of a step, whose size depends on the model's batch, not on Ψ.
///
/// # Non-finite numbers
///
/// A step with a gradient that is infinite or not a number makes no update, in every precision and on all ranks
/// alike: parameters, moments, schedule and step counter stay as they are. A hundred such steps in a row end the
/// run with an error. A run that ends with non-finite weights, or with a non-finite validation loss, also fails, and
/// its model is not written.
#[derive(Clone, Debug)]
pub struct Trainer<M: 'static> {
    strategies: Composed<M>,
    world: Option<World>,
    settings: TrainingSettings,
    fresh: Vec<String>,
    start: Option<Arc<StartingFactors>>,
    scores: AddedScores,
    /// A lower bound on the tensors of parameter size that the optimizer keeps per parameter, if known.
    optimizer_states: f64,
    utilization: Option<Utilization>,
    output: Option<Destination>,
    checkpoints: Option<Checkpoints>,
    resume: Option<Resume>,
    allow_changes: bool,
    /// The run file, if the run has one.
    run: Option<RunText>,
    show: Show,
    label: String,
    interrupter: Interrupted,
    observers: SharedObservers,
}

/// Wraps [`Interrupter`], which has no `Debug`.
#[derive(Clone, Default)]
struct Interrupted(Interrupter);

impl std::fmt::Debug for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Interrupter({})", self.0.should_stop())
    }
}

impl<M> Default for Trainer<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M> Trainer<M> {
    /// Creates a trainer without strategies: one epoch in f32, one micro-batch per update, progress shown as
    /// [`Show::Nothing`], and no files.
    pub fn new() -> Self {
        Self {
            strategies: Composed::new(),
            world: None,
            settings: TrainingSettings::default(),
            fresh: Vec::new(),
            start: None,
            scores: AddedScores::default(),
            optimizer_states: 0.0,
            utilization: None,
            output: None,
            checkpoints: None,
            resume: None,
            allow_changes: false,
            run: None,
            show: Show::Nothing,
            label: "training".into(),
            interrupter: Interrupted::default(),
            observers: SharedObservers::default(),
        }
    }

    /// Adds a strategy. What transforms gradients runs behind those that do so already.
    pub fn with(mut self, strategy: impl Composition<M>) -> Self {
        self.strategies = self.strategies.with(strategy);
        self
    }

    /// Trains on many ranks. A strategy must sum their gradients: [`Zero`](crate::Zero), in any stage. Default: the
    /// world that a strategy names, or one rank.
    ///
    /// A global batch is `micro-batch · Accumulate · ranks` samples. Each rank reads its part of it, and all ranks
    /// make the same updates as one rank with the same global batch. Ranks of this process are threads, each with the
    /// model on its [device](World::device) and with a clone of the optimizer. The first rank owns the output folder
    /// and shows the progress.
    ///
    /// ```
    /// # use burn::optim::AdamWConfig;
    /// # use burn::tensor::Device;
    /// # use firebrick::*;
    /// # use firebrick::datasets::{Tokenizer, Windows};
    /// # use firebrick_models::GptConfig;
    /// # let text = "to be or not to be, that is the question; ".repeat(20);
    /// # let tokenizer = Tokenizer::characters(&text)?;
    /// # let data = Data::new(Windows::new(tokenizer.encode(&text)?, 8)?.shuffled(1));
    /// # let config = GptConfig { layers: 1, heads: 1, width: 8, dropout: 0.0, bias: true, tied: true };
    /// # let model = config.init(tokenizer.vocab_size(), 8, &Device::flex().autodiff());
    /// # let optimizer = AdamWConfig::new().init();
    /// let trained = Trainer::new()
    ///     .over(World::threads(4))
    ///     .with(Zero::stage(1))
    ///     .steps(3)
    ///     .fit(model, optimizer, Schedule::constant(1e-3), data.micro_batch(2))?; // 4 · 2 samples
    /// assert_eq!(trained.cursor.consumed, 3 * 8);
    /// # Ok::<(), TrainError>(())
    /// ```
    pub fn over(self, world: World) -> Self {
        Self { world: Some(world), ..self }
    }

    /// Replaces the settings that [`TrainingSettings`] has: the seed, the label smoothing, the length, when the run
    /// evaluates, what selects the best evaluation and ends the run early, the device budget, and the timelines.
    pub fn settings(self, settings: TrainingSettings) -> Self {
        Self { settings, ..self }
    }

    fn set(mut self, set: impl FnOnce(&mut TrainingSettings)) -> Self {
        set(&mut self.settings);
        self
    }

    /// Seeds the model's random draws during training, made through [`Pass::draws`](crate::Pass::draws): the masks of
    /// [`Dropout`](crate::strategies::Dropout). Default: 0. Burn's own random layers and the model's initial weights
    /// draw from the device's generator instead, which [`Device::seed`](burn::tensor::Device::seed) seeds.
    pub fn seed(self, seed: u64) -> Self {
        self.set(|settings| settings.seed = seed)
    }

    /// Sets the [patterns](crate::strategies::Paths) of newly initialized parameters, such as a head that a pretrained
    /// folder lacked: a strategy that freezes the rest of the model, such as [`Lora`](crate::Lora), trains them whole.
    /// Default: none.
    pub fn fresh<P: Into<String>>(self, patterns: impl IntoIterator<Item = P>) -> Self {
        Self { fresh: patterns.into_iter().map(Into::into).collect(), ..self }
    }

    /// Starts from the factors of an earlier run, or of PEFT, instead of new ones. [`Lora`](crate::Lora) takes them, with
    /// their rank, scale and matrices: [`Adapters::recipe`] returns such a recipe. Give `fit` the model that they were
    /// trained on. Optimizer and schedule start anew. Default: new factors.
    ///
    /// Parameters that the recipe trains whole start from the values of the adapters, if these have them.
    pub fn starting_from(self, adapters: &Adapters) -> Self {
        Self { start: Some(adapters.to_start()), ..self }
    }

    /// Smooths the labels of losses over classes during training: spreads this share of each label, at least 0 and
    /// below 1, evenly over all classes, like `label_smoothing` of torch's cross entropy. Default: 0. The training
    /// loss is computed with smoothed labels, the validation loss without.
    ///
    /// Firebrick's models support it. A model of your own supports it if its loss is a
    /// `firebrick_models::smoothed_cross_entropy`; otherwise `fit` rejects the setting.
    pub fn label_smoothing(self, share: f64) -> Self {
        self.set(|settings| settings.label_smoothing = share)
    }

    /// Ends after this many updates, over as many epochs as needed.
    pub fn steps(self, updates: u64) -> Self {
        self.set(|settings| (settings.steps, settings.epochs) = (Some(updates), None))
    }

    /// Ends after this many epochs.
    pub fn epochs(self, epochs: u64) -> Self {
        self.set(|settings| (settings.steps, settings.epochs) = (None, Some(epochs)))
    }

    /// Evaluates after every `updates` updates and at the end, instead of after each epoch.
    pub fn evaluate_every(self, updates: u64) -> Self {
        self.set(|settings| settings.evaluate_every = Some(updates))
    }

    /// Adds a score of evaluations, which is computed from their [sums](crate::EvaluationSums): it is shown, logged and
    /// reported like the model's own [scores](crate::Objective::scores), and may [select](Self::best_by) the best
    /// evaluation.
    ///
    /// ```
    /// # use burn::tensor::Device;
    /// # use firebrick::*;
    /// # use firebrick::datasets::Windows;
    /// # use firebrick::optim::AdamW;
    /// # use firebrick_models::GptConfig;
    /// # let rows = || Windows::new((0..99).map(|i| i % 7).collect::<Vec<u32>>(), 8).unwrap();
    /// # let data = Data::new(rows()).valid(rows());
    /// # let config = GptConfig { layers: 1, heads: 1, width: 8, dropout: 0.0, bias: true, tied: true };
    /// # let model = config.init(7, 8, &Device::flex().autodiff());
    /// let bits = |sums: &EvaluationSums| {
    ///     Score::lower("bits_per_token", sums.loss / sums.items as f64 / std::f64::consts::LN_2)
    /// };
    /// let trainer = Trainer::new().steps(4).score(bits).best_by("bits_per_token");
    /// let trained = trainer.fit(model, AdamW::new().init()?, Schedule::constant(1e-3), data)?;
    /// assert!(trained.report.best_valid_scores["bits_per_token"] > 0.0);
    /// # Ok::<(), TrainError>(())
    /// ```
    pub fn score(mut self, score: impl ScoreFn + 'static) -> Self {
        self.scores.add(score);
        self
    }

    /// Selects the best evaluation by one of the [scores](crate::Objective::scores) instead of the validation loss, for the best model, the best checkpoints and early stopping. The score itself defines whether higher is
    /// better.
    pub fn best_by(self, score: impl Into<String>) -> Self {
        self.set(|settings| settings.best_by = Some(score.into()))
    }

    /// Ends the run once the validation loss, or the [score](Self::best_by), has not improved for this many
    /// evaluations.
    pub fn early_stopping(self, evaluations: usize) -> Self {
        self.set(|settings| settings.early_stopping = Some(evaluations))
    }

    /// Shows and reports which share of the devices' peak the run uses. Default: it is not known.
    ///
    /// ```
    /// # use burn::tensor::{Device, FloatDType};
    /// # use firebrick::*;
    /// # use firebrick::datasets::Windows;
    /// # use firebrick::optim::AdamW;
    /// # use firebrick_models::GptConfig;
    /// # let data = Data::new(Windows::new((0..99).map(|i| i % 7).collect::<Vec<u32>>(), 8)?);
    /// # let config = GptConfig { layers: 1, heads: 1, width: 8, dropout: 0.0, bias: true, tied: true };
    /// # let device = Device::flex().autodiff();
    /// # let model = config.init(7, 8, &device);
    /// use burn::module::Module;
    ///
    /// // Known for many GPUs; measure it for another device.
    /// let peak_flops = device::peak_flops(&device, FloatDType::F32).unwrap_or(100e9);
    /// let flops_per_token = 6.0 * model.num_params() as f64;
    /// let trainer = Trainer::new().steps(2).utilization(Utilization { flops_per_token, peak_flops });
    /// let report = trainer.fit(model, AdamW::new().init()?, Schedule::constant(1e-3), data)?.report;
    /// let expected = report.tokens_per_second * flops_per_token / peak_flops;
    /// assert!((report.mfu.unwrap() / expected - 1.0).abs() < 1e-9);
    /// # Ok::<(), TrainError>(())
    /// ```
    pub fn utilization(self, of: impl Into<Option<Utilization>>) -> Self {
        Self { utilization: of.into(), ..self }
    }

    /// Ends the run with [`TrainError::OverBudget`](crate::TrainError::OverBudget) if more than this many bytes are
    /// on the device: at once if the parameters and their gradients exceed the budget, otherwise at the first forward
    /// and backward pass or update that does. Default: no limit.
    ///
    /// The CPU counts as a device too, so you can try a run for a GPU on the CPU. [`OnDevice`](crate::OnDevice) lists
    /// what counts; activations count only if the program counts its memory, with
    /// [`memory::Counting`](crate::memory::Counting), or the device has a memory pool that does. If ranks are
    /// threads, each rank counts its own bytes.
    pub fn device_budget(self, bytes: usize) -> Self {
        self.set(|settings| settings.device_budget = Some(ByteSize(bytes)))
    }

    /// Sets a lower bound on the tensors of parameter size that the optimizer keeps per parameter.
    pub fn optimizer_states(self, tensors: f64) -> Self {
        Self { optimizer_states: tensors, ..self }
    }
}
