//! The trainer: a composition of strategies and the settings of the loop.

mod fit;
mod for_rank;
mod one_rank;
mod start;
mod trained;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::train::Interrupter;
use firebrick_strategies::{Identity, Stack, World};

use crate::checkpoint::RunText;
use crate::dashboard::Show;
use crate::output::Output;
use crate::step::StepNumbers;
use crate::{Checkpoints, Resume};

pub use trained::Trained;

/// Trains an ordinary Burn model; how is composed, one line per technique.
///
/// ```
/// # use burn::optim::AdamWConfig;
/// # use burn::tensor::Device;
/// # use firebrick::{datasets::{Tokenizer, Windows}, models::GptConfig, *};
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
/// Every strategy can be removed and the program still trains the same model to the same place.
///
/// # Order
///
/// Gradients meet the strategies in the order in which they are written. With Ψ parameters:
///
/// | composition | bytes held between steps | in a step |
/// |---|---|---|
/// | none | 12Ψ: 4 weights, 8 moments | 4Ψ of f32 gradients |
/// | `Accumulate(8)` | 12Ψ | 4Ψ held over the window, and 4Ψ from each backward pass |
/// | `Amp::bf16()` | 14Ψ: 4 master, 2 replica, 8 moments | 2Ψ from the backward pass become 4Ψ |
/// | `Amp::bf16()`, `Accumulate(8)` | 14Ψ | 4Ψ held over the window, and 2Ψ from each backward pass |
/// | `Amp::pure_bf16()` | 6Ψ: 2 weights, 4 moments | 2Ψ of bf16 gradients |
/// | `Ema::new(0.999)` | 16Ψ: 4 weights, 4 average, 8 moments | 4Ψ of f32 gradients |
///
/// [`Recompute`](crate::Recompute) meets no gradient, so it may stand anywhere: it acts on the activations of a
/// step, which the model's batch determines and Ψ does not.
///
/// An order that would give a wrong number is an error of [`fit`](Self::fit), with the fix in it:
///
/// ```
/// # use burn::optim::AdamWConfig;
/// # use burn::tensor::Device;
/// # use firebrick::{datasets::Windows, models::GptConfig, *};
/// # let data = Data::new(Windows::new(vec![0; 99], 8)?);
/// # let config = GptConfig { layers: 1, heads: 1, width: 8, dropout: 0.0, bias: true, tied: true };
/// # let model = config.init(1, 8, &Device::flex().autodiff());
/// # let (optimizer, schedule) = (AdamWConfig::new().init(), Schedule::constant(1e-3));
/// let wrong = Trainer::new().with(Clip::norm(1.0)).with(Accumulate(4)).steps(1);
/// let error = wrong.fit(model, optimizer, schedule, data).unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "Clip stands before Accumulate: it would see each micro-batch by itself, not the window; \
///      write Accumulate first"
/// );
/// # Ok::<(), TrainError>(())
/// ```
///
/// # Numbers that are not finite
///
/// A window with a gradient that is infinite or not a number makes no update, in every precision and on all ranks
/// alike: parameters, moments, schedule and step counter stay as they are. A hundred such windows in a row end the
/// run. So does an end with weights, or a validation loss, that are no numbers: such a model is not written.
#[derive(Clone, Debug)]
pub struct Trainer<S = Identity> {
    strategies: S,
    world: Option<World>,
    seed: u64,
    label_smoothing: f64,
    length: Length,
    evaluate_every: Option<u64>,
    patience: Option<usize>,
    best_by: Option<String>,
    device_budget: Option<usize>,
    /// Tensors like each parameter that the optimizer will keep at least, where that is known.
    optimizer_states: f64,
    output: Option<Destination>,
    checkpoints: Option<Checkpoints>,
    resume: Option<Resume>,
    allow_changes: bool,
    /// The run file, where the run has one.
    run: Option<RunText>,
    show: Show,
    label: String,
    interrupter: Interrupted,
}

/// Is handed each step's numbers.
type Watch = Box<dyn FnMut(&StepNumbers) + Send>;

#[derive(Clone, Debug)]
enum Destination {
    Folder(PathBuf),
    Claimed(Arc<Output>),
    /// That of the first rank, in another process.
    Elsewhere(PathBuf),
}

impl Destination {
    fn folder(&self) -> &Path {
        match self {
            Self::Folder(folder) | Self::Elsewhere(folder) => folder,
            Self::Claimed(output) => output.folder(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Length {
    Steps(u64),
    Epochs(u64),
}

/// [`Interrupter`] has no `Debug`.
#[derive(Clone, Default)]
struct Interrupted(Interrupter);

impl std::fmt::Debug for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Interrupter({})", self.0.should_stop())
    }
}

impl Default for Trainer {
    fn default() -> Self {
        Self::new()
    }
}

impl Trainer {
    /// No strategy: one epoch, in f32, one micro-batch to an update, progress shown as
    /// [`Show::Nothing`], and no files.
    pub fn new() -> Self {
        Self {
            strategies: Identity,
            world: None,
            seed: 0,
            label_smoothing: 0.0,
            length: Length::Epochs(1),
            evaluate_every: None,
            patience: None,
            best_by: None,
            device_budget: None,
            optimizer_states: 0.0,
            output: None,
            checkpoints: None,
            resume: None,
            allow_changes: false,
            run: None,
            show: Show::Nothing,
            label: "training".into(),
            interrupter: Interrupted::default(),
        }
    }
}

impl<S> Trainer<S> {
    /// Composes one more strategy, which meets the gradients after those before it.
    pub fn with<T>(self, strategy: T) -> Trainer<Stack<S, T>> {
        self.map_strategies(|strategies| Stack::new(strategies, strategy))
    }

    fn map_strategies<T>(self, map: impl FnOnce(S) -> T) -> Trainer<T> {
        Trainer {
            strategies: map(self.strategies),
            world: self.world,
            seed: self.seed,
            label_smoothing: self.label_smoothing,
            length: self.length,
            evaluate_every: self.evaluate_every,
            patience: self.patience,
            best_by: self.best_by,
            device_budget: self.device_budget,
            optimizer_states: self.optimizer_states,
            output: self.output,
            checkpoints: self.checkpoints,
            resume: self.resume,
            allow_changes: self.allow_changes,
            run: self.run,
            show: self.show,
            label: self.label,
            interrupter: self.interrupter,
        }
    }

    /// Trains on many ranks. A strategy must sum their gradients: [`Zero`](crate::Zero), in any stage. Default:
    /// the world that a strategy names, or one rank.
    ///
    /// A global batch is `micro-batch · Accumulate · ranks` samples. Each rank reads its part of each, and all
    /// make the same updates: those of one rank with the same global batch. Ranks of this process are threads,
    /// each with the model on its [device](World::device) and with a clone of the optimizer. The first
    /// rank owns the output folder and what is shown.
    ///
    /// ```
    /// # use burn::optim::AdamWConfig;
    /// # use burn::tensor::Device;
    /// # use firebrick::{datasets::{Tokenizer, Windows}, models::GptConfig, *};
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
    pub fn over(mut self, world: World) -> Self {
        self.world = Some(world);
        self
    }

    /// Seeds what the model draws while training, through [`Pass::draws`](crate::Pass::draws): the
    /// masks of [`Dropout`](crate::strategies::Dropout). Default: 0. Burn's own random layers and
    /// the model's first weights draw from the device's generator instead, which
    /// [`Device::seed`](burn::tensor::Device::seed) seeds.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Smooths the labels of losses over classes while training: this share of each label, at least 0 and below 1, is
    /// spread evenly over all classes, as `label_smoothing` of torch's cross entropy does. Default: 0. The training
    /// loss is that of smoothed labels; evaluation reports the plain one.
    ///
    /// Firebrick's models do so; a model of your own does where its loss is a
    /// [`smoothed_cross_entropy`](crate::models::smoothed_cross_entropy), and else is refused.
    pub fn label_smoothing(mut self, share: f64) -> Self {
        self.label_smoothing = share;
        self
    }

    /// Ends after this many updates; epochs follow one another as needed.
    pub fn steps(mut self, updates: u64) -> Self {
        self.length = Length::Steps(updates);
        self
    }

    /// Ends after this many epochs.
    pub fn epochs(mut self, epochs: u64) -> Self {
        self.length = Length::Epochs(epochs);
        self
    }

    /// Evaluates after every so many updates and at the end, instead of after each epoch.
    pub fn evaluate_every(mut self, updates: u64) -> Self {
        self.evaluate_every = Some(updates);
        self
    }

    /// Tells the best evaluation by one of the model's [scores](crate::Objective::scores) instead of by the validation
    /// loss: for the best model, the best checkpoints and early stopping. Whether more of it is better, the
    /// score knows.
    pub fn best_by(mut self, score: impl Into<String>) -> Self {
        self.best_by = Some(score.into());
        self
    }

    /// Ends once the validation loss has not fallen, or the [score](Self::best_by) not got better, for this many evaluations.
    pub fn early_stopping(mut self, evaluations: usize) -> Self {
        self.patience = Some(evaluations);
        self
    }

    /// Ends the run with [`TrainError::OverBudget`](crate::TrainError::OverBudget) where more than so many bytes are on the device: at
    /// once where the parameters and their gradients are more, or else at the first forward and backward
    /// pass or update that takes more. Default: no limit.
    ///
    /// The CPU is a device like any other here, so that a run for a GPU can be tried on one. What counts
    /// is told at [`OnDevice`](crate::OnDevice): activations only where the program counts its memory,
    /// with [`memory::Counting`](crate::memory::Counting), or the device has a pool that does. For a rank
    /// that is a thread it is the rank's own.
    pub fn device_budget(mut self, bytes: usize) -> Self {
        self.device_budget = Some(bytes);
        self
    }

    /// The optimizer will keep at least so many tensors like each parameter.
    pub(crate) fn optimizer_states(mut self, tensors: f64) -> Self {
        self.optimizer_states = tensors;
        self
    }

    /// Writes into this folder: `model.safetensors` at the end, `ema.safetensors` where the weights are averaged, and
    /// `adapter` with the factors of [`Lora`](crate::Lora); `best.safetensors`, of the weights that were evaluated, at
    /// each lowest validation loss; `metrics.jsonl` with a line per step and evaluation, and burn-train's metric
    /// files. The folder of an earlier run is kept under another name once this one has made its first
    /// update; one that holds anything else is refused.
    pub fn output(mut self, folder: impl AsRef<Path>) -> Self {
        self.output = Some(Destination::Folder(folder.as_ref().into()));
        self
    }

    /// Writes into a folder that is claimed already.
    pub(crate) fn claimed(mut self, output: Arc<Output>) -> Self {
        self.output = Some(Destination::Claimed(output));
        self
    }

    /// The first rank, which is in another process, writes into this folder.
    pub(crate) fn saved_elsewhere(mut self, folder: &Path) -> Self {
        self.output = Some(Destination::Elsewhere(folder.into()));
        self
    }

    /// Saves the run into `checkpoints` of the output folder, so that it can be [resumed](Self::resume).
    ///
    /// ```
    /// # use burn::tensor::Device;
    /// # use firebrick::{datasets::Windows, models::GptConfig, optim::AdamW, *};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let output = folder.path().join("run");
    /// # let data = Data::new(Windows::new((0..99).map(|i| i % 7).collect::<Vec<u32>>(), 8)?.shuffled(1));
    /// # let config = GptConfig { layers: 1, heads: 1, width: 8, dropout: 0.1, bias: true, tied: true };
    /// # let model = || config.init(7, 8, &Device::flex().autodiff());
    /// let trainer = Trainer::new().steps(6).output(&output).checkpoints(Checkpoints::every(2));
    /// trainer.clone().fit(model(), AdamW::new().init(), Schedule::constant(1e-3), data.clone())?;
    ///
    /// // Another process, with other first weights, goes on after the fourth update.
    /// let again = trainer.resume(Resume::Step(4));
    /// let trained = again.fit(model(), AdamW::new().init(), Schedule::constant(1e-3), data)?;
    /// assert_eq!(trained.report.steps, 6);
    /// # Ok::<(), TrainError>(())
    /// ```
    pub fn checkpoints(mut self, checkpoints: Checkpoints) -> Self {
        self.checkpoints = Some(checkpoints);
        self
    }

    /// Continues from a checkpoint: the losses, the weights, the order of samples and every random number are those
    /// of the run that was saved, had it not ended; on the CPU to the bit.
    ///
    /// The number of ranks and the strategies may be others, as long as an update sees as many samples: the run
    /// then goes on as on those ranks, within their rounding. The length may be another one too, which moves a schedule
    /// that is stretched over it. A seed, schedule, global batch or number of samples that is another
    /// is refused, unless [allowed](Self::allow_changes).
    pub fn resume(mut self, from: Resume) -> Self {
        self.resume = Some(from);
        self
    }

    /// Lets a [resumed](Self::resume) run go on with settings that its result depends on.
    pub fn allow_changes(mut self, allow: bool) -> Self {
        self.allow_changes = allow;
        self
    }

    /// The run file, to be saved and compared with.
    pub(crate) fn described(mut self, run: RunText) -> Self {
        self.run = Some(run);
        self
    }

    /// Shows the progress.
    pub fn show(mut self, show: Show) -> Self {
        self.show = show;
        self
    }

    /// Names the run in what is shown.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// Stops at the next step boundary when this handle says so, with everything saved.
    pub fn interrupter(mut self, interrupter: Interrupter) -> Self {
        self.interrupter = Interrupted(interrupter);
        self
    }
}
