//! The trainer: a composition of strategies and the settings of the loop.

mod lent;
mod one_rank;
mod trained;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::optim::ModuleOptimizer;
use burn::train::Interrupter;
use firebrick_datasets::{Batch, DataError};
use firebrick_strategies::{Identity, Stack, Strategy, World};

use crate::dashboard::Show;
use crate::output::Output;
use crate::ranks::each_rank;
use crate::report::process_start;
use crate::step::StepNumbers;
use crate::{Data, Objective, Schedule, TrainError};

use lent::lent;
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
#[derive(Clone, Debug)]
pub struct Trainer<S = Identity> {
    strategies: S,
    world: Option<World>,
    seed: u64,
    length: Length,
    evaluate_every: Option<u64>,
    patience: Option<usize>,
    device_budget: Option<usize>,
    /// Tensors like each parameter that the optimizer will keep, where that is known.
    optimizer_states: usize,
    output: Option<Destination>,
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
    Elsewhere,
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
            length: Length::Epochs(1),
            evaluate_every: None,
            patience: None,
            device_budget: None,
            optimizer_states: 0,
            output: None,
            show: Show::Nothing,
            label: "training".into(),
            interrupter: Interrupted::default(),
        }
    }
}

impl<S> Trainer<S> {
    /// Composes one more strategy, which meets the gradients after those before it.
    pub fn with<T>(self, strategy: T) -> Trainer<Stack<S, T>> {
        Trainer {
            strategies: Stack::new(self.strategies, strategy),
            world: self.world,
            seed: self.seed,
            length: self.length,
            evaluate_every: self.evaluate_every,
            patience: self.patience,
            device_budget: self.device_budget,
            optimizer_states: self.optimizer_states,
            output: self.output,
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

    /// Ends once the validation loss has not fallen for this many evaluations.
    pub fn early_stopping(mut self, evaluations: usize) -> Self {
        self.patience = Some(evaluations);
        self
    }

    /// Ends the run with [`TrainError::OverBudget`] where more than so many bytes are on the device: at
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

    /// The optimizer will keep so many tensors like each parameter.
    pub(crate) fn optimizer_states(mut self, tensors: usize) -> Self {
        self.optimizer_states = tensors;
        self
    }

    /// Writes into this folder: `model.safetensors` at the end, and `ema.safetensors` where the weights
    /// are averaged; `best.safetensors`, of the weights that were evaluated, at each lowest
    /// validation loss; `metrics.jsonl` with a line per step and evaluation, and burn-train's
    /// metric files. The folder of an earlier run is kept under another name; one that holds
    /// anything else is refused.
    pub fn output(mut self, folder: impl AsRef<Path>) -> Self {
        self.output = Some(Destination::Folder(folder.as_ref().into()));
        self
    }

    /// Writes into a folder that is claimed already.
    pub(crate) fn claimed(mut self, output: Arc<Output>) -> Self {
        self.output = Some(Destination::Claimed(output));
        self
    }

    /// The first rank, which is in another process, writes into a folder.
    pub(crate) fn saved_elsewhere(mut self) -> Self {
        self.output = Some(Destination::Elsewhere);
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

    /// Trains `model` on `data`, and returns it whole.
    ///
    /// The model runs where its parameters are, or on the devices that the world [names](World::on). One that
    /// no device can hold is made on the host: [`Zero`](crate::Zero) and [`Offload`](crate::Offload) take from it,
    /// one parameter after the other, what they keep. Where a strategy computes in a smaller dtype, the first
    /// batch is tried before the run, so that a model that mixes dtypes is told which parameter does not fit.
    ///
    /// # Errors
    ///
    /// A strategy, setting or order that cannot be; data that cannot be read; an objective whose
    /// count or dtype is wrong; a file that cannot be written; or nothing but skipped updates. Of many
    /// ranks: the first error of any, with [its number](TrainError::Rank); or
    /// [one that is late](firebrick_strategies::WorldError::Deadline).
    pub fn fit<M, B>(
        self,
        model: M,
        optimizer: ModuleOptimizer,
        schedule: Schedule,
        data: Data<B>,
    ) -> Result<Trained<M>, TrainError>
    where
        M: Objective<B> + 'static,
        B: Batch,
        S: Strategy<M>,
    {
        self.fit_watched(model, optimizer, schedule, data, |_| {})
    }

    /// [`fit`](Self::fit), with each step's numbers handed to `watch` as well.
    ///
    /// # Errors
    ///
    /// Those of [`fit`](Self::fit).
    pub fn fit_watched<M, B>(
        self,
        model: M,
        optimizer: ModuleOptimizer,
        schedule: Schedule,
        data: Data<B>,
        watch: impl FnMut(&StepNumbers) + Send + 'static,
    ) -> Result<Trained<M>, TrainError>
    where
        M: Objective<B> + 'static,
        B: Batch,
        S: Strategy<M>,
    {
        process_start();
        self.check()?;
        if data.valid.as_ref().is_some_and(|valid| valid.samples(0) == 0) {
            return Err(DataError::EmptyEpoch { epoch: 0 }.into());
        }
        let world = self.world()?;
        let mut ranks = world.join()?;
        let watch: Watch = Box::new(watch);
        if let Some(alone) = ranks.pop_if(|rank| rank.size() == 1) {
            let device = world.device(0).cloned();
            let model = lent(model, device.as_ref());
            return self
                .train(alone, (model, device), optimizer, schedule, data, watch, Some(0))?
                .ok_or(TrainError::NoModel);
        }
        // In one process the model is wanted once; of several, each wants it.
        let root = (ranks.len() == ranks[0].size()).then_some(0);
        let mut watch = Some(watch);
        let jobs = ranks.into_iter().map(|rank| {
            let own = model.devices().first().cloned();
            let device = world.device(rank.local_rank()).cloned().or(own);
            // Ranks that shared a leaf would share its graph, and wait for each other in the backward pass.
            let own = lent(model.clone(), device.as_ref());
            let watch = watch.take_if(|_| rank.rank() == 0).unwrap_or_else(|| Box::new(|_| {}));
            (rank, (self.clone(), (own, device), optimizer.clone(), data.clone(), watch))
        });
        let jobs: Vec<_> = jobs.collect();
        // Each rank has its own: what was given would be held through the whole run.
        drop((model, optimizer, data));
        let trained =
            each_rank(jobs, world.limit(), move |rank, (trainer, model, optimizer, data, watch)| {
                trainer.train(rank, model, optimizer, schedule, data, watch, root)
            });
        trained?.ok_or(TrainError::NoModel)
    }

    fn check(&self) -> Result<(), TrainError> {
        let (length, found) = match self.length {
            Length::Steps(updates) => ("steps", updates),
            Length::Epochs(epochs) => ("epochs", epochs),
        };
        let settings = [
            (length, found),
            ("device_budget", self.device_budget.unwrap_or(1) as u64),
            ("evaluate_every", self.evaluate_every.unwrap_or(1)),
            ("early_stopping", self.patience.unwrap_or(1) as u64),
        ];
        match settings.into_iter().find(|(_, value)| *value == 0) {
            None => Ok(()),
            Some((setting, _)) => {
                Err(TrainError::Setting { setting, expected: "at least 1", found: "0".into() })
            }
        }
    }
}
