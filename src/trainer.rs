//! The trainer: a composition of strategies and the settings of the loop.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::optim::ModuleOptimizer;
use burn::train::Interrupter;
use firebrick_datasets::{Batch, Cursor, DataError};
use firebrick_strategies::{Identity, Stack, Stage, Strategy};

use crate::dashboard::Show;
use crate::dry_run::dry_run;
use crate::feed::{Feed, updates_in_epochs, windows_in_epoch};
use crate::history::History;
use crate::inside_burn_train::InsideBurnTrain;
use crate::log::Log;
use crate::output::Output;
use crate::report::{Report, process_start};
use crate::session::Session;
use crate::step::StepNumbers;
use crate::training_loop::{Plan, TrainingLoop};
use crate::{Data, Objective, Schedule, TrainError};

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
    seed: u64,
    length: Length,
    evaluate_every: Option<u64>,
    patience: Option<usize>,
    output: Option<Destination>,
    show: Show,
    label: String,
    interrupter: Interrupted,
}

#[derive(Clone, Debug)]
enum Destination {
    Folder(PathBuf),
    Claimed(Arc<Output>),
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

/// What [`Trainer::fit`] returns.
#[derive(Debug)]
pub struct Trained<M> {
    /// The whole master, outside autodiff: in f32, or in bf16 under `Amp::pure_bf16()`.
    pub model: M,
    /// The run in numbers.
    pub report: Report,
    /// Where the weights of the lowest validation loss are, if the run has an output folder and
    /// was evaluated.
    pub best: Option<PathBuf>,
    /// Where the stream of samples stands: a later run that starts here goes on with the samples
    /// that this one has not seen.
    pub cursor: Cursor,
    /// The numbers of the last step.
    pub last_step: StepNumbers,
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
            seed: 0,
            length: Length::Epochs(1),
            evaluate_every: None,
            patience: None,
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
            seed: self.seed,
            length: self.length,
            evaluate_every: self.evaluate_every,
            patience: self.patience,
            output: self.output,
            show: self.show,
            label: self.label,
            interrupter: self.interrupter,
        }
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

    /// Writes into this folder: `model.safetensors` at the end, `best.safetensors` at each lowest
    /// validation loss, `metrics.jsonl` with a line per step and evaluation, and burn-train's
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
    /// The model runs on the device that its parameters are on. Where a strategy computes in a
    /// smaller dtype, the first batch is tried before the run, so that a model that mixes dtypes is
    /// told which parameter does not fit.
    ///
    /// # Errors
    ///
    /// A strategy, setting or order that cannot be; data that cannot be read; an objective whose
    /// count or dtype is wrong; a file that cannot be written; or nothing but skipped updates.
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
        let total_updates = |window| self.total_updates(&data, window);
        let (mut session, window) =
            Session::start(&self.strategies, model, optimizer, schedule, self.seed, total_updates)?;
        // Refused before the folder is touched.
        let plan = self.plan(&data, window)?;
        let warmup = schedule.warmup_updates();
        if warmup >= plan.total_updates {
            return Err(TrainError::Warmup { warmup, total: plan.total_updates });
        }
        dry_run(&mut session, &data, window)?;
        let output = match &self.output {
            None => None,
            Some(Destination::Claimed(output)) => Some(output.clone()),
            Some(Destination::Folder(folder)) => Some(Arc::new(Output::claim(folder)?)),
        };
        let training = TrainingLoop {
            feed: Feed::new(&data, Cursor::default(), window)?,
            output: output.clone(),
            log: Log::new(output.as_ref().map(|output| output.folder()))?,
            history: History::default(),
            watch: Box::new(watch),
            session,
            data,
            plan,
        };
        let inside = InsideBurnTrain {
            interrupter: self.interrupter.0.clone(),
            renderer: self.show.renderer(&self.interrupter.0, training.plan.total_updates),
            output: output.as_ref().map(|output| output.folder().into()),
            patience: self.patience,
            label: self.label.clone(),
        };
        let finished = inside.run(training)?;
        finish(finished)
    }

    fn check(&self) -> Result<(), TrainError> {
        let (length, found) = match self.length {
            Length::Steps(updates) => ("steps", updates),
            Length::Epochs(epochs) => ("epochs", epochs),
        };
        let settings = [
            (length, found),
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

    fn total_updates<B: Batch>(&self, data: &Data<B>, window: usize) -> Result<u64, DataError> {
        match self.length {
            Length::Steps(updates) => Ok(updates),
            Length::Epochs(epochs) => updates_in_epochs(data, epochs, window),
        }
    }

    fn plan<B: Batch>(&self, data: &Data<B>, window: usize) -> Result<Plan, DataError> {
        let total_updates = self.total_updates(data, window)?;
        let round_updates = match self.evaluate_every {
            Some(updates) => updates,
            None => windows_in_epoch(data, 0, window)?,
        };
        Ok(Plan {
            total_updates,
            end_epoch: match self.length {
                Length::Steps(_) => None,
                Length::Epochs(epochs) => Some(epochs),
            },
            evaluate_every: self.evaluate_every,
            rounds: total_updates.div_ceil(round_updates.max(1)) as usize,
            round_updates: round_updates.min(total_updates),
            dashboard: self.show.is_dashboard(),
        })
    }
}

/// Saves the model and sums up.
fn finish<M, B, T>(finished: TrainingLoop<M, B, T>) -> Result<Trained<M>, TrainError>
where
    M: Objective<B>,
    B: Batch,
    T: Stage<M>,
{
    let TrainingLoop { session, history, output, .. } = finished;
    let model = session.master().valid();
    if let Some(output) = &output {
        output.save_model("model.safetensors", &model)?;
    }
    Ok(Trained {
        model,
        report: Report::new(&history, session.bytes()),
        best: history.best_path,
        cursor: history.cursor,
        last_step: history.last,
    })
}
