//! From a checked run to a trained model.

use std::path::PathBuf;
use std::sync::Arc;

use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::tensor::Device;
use burn::train::Interrupter;
use firebrick_datasets::{DataError, TokenBatch, Tokenizer};
use firebrick_strategies::{Adaptation, Setup, Strategy, World, host_device};

use super::{DataRun, Loaded, ModelConfig, Process, Run, RunError, TaskConfig, TaskData, changes};
use crate::checkpoint::RunText;
use crate::console::tell;
use crate::models::{Gpt, Sampler};
use crate::output::Output;
use crate::{ByteSize, Data, Report, Resume, Show, TrainError, Trainer, device, memory};

/// What a run is made of, before it trains.
pub struct Parts {
    /// Where it trains, with autodiff.
    pub device: Device,
    /// Where its weights are made: there too, or on the host where strategies take them from there, one after
    /// the other.
    pub origin: Device,
    /// What it is called, as in `cuda:0`.
    pub device_name: String,
    /// The ranks.
    pub world: World,
    /// The data, cut.
    pub data: Data<TokenBatch>,
    /// What made its tokens.
    pub tokenizer: Arc<Tokenizer>,
    /// The tokens that the sample starts from.
    pub prompt: Vec<u32>,
    /// The positions that the model reads at once: all tokens of a row but the last, which is only
    /// a label.
    pub context: usize,
}

/// A run that has been trained.
#[derive(Debug)]
pub struct Launched {
    /// The run in numbers.
    pub report: Report,
    /// Text that the model wrote, if the run asks for it.
    pub sample: Option<String>,
    /// Where the weights of the lowest validation loss are, if it was evaluated.
    pub best: Option<PathBuf>,
}

impl Run {
    /// Trains, and writes into the output folder: `run.ron` and `tokenizer.json` before the first
    /// step, `metrics.jsonl`, `best.safetensors` and `checkpoints` during the run, `model.safetensors`,
    /// `ema.safetensors` where the weights are averaged, `report.json` and `sample.txt` at the end. The
    /// averaged weights write the sample, where there are some.
    ///
    /// # Errors
    ///
    /// A device that is not there, data that cannot be read, strategies that do not fit, and
    /// whatever ends a training run.
    pub fn launch(&self, show: Show, interrupter: Interrupter) -> Result<Launched, RunError> {
        self.launch_from(None, false, show, interrupter)
    }

    /// [`launch`](Self::launch), which goes on from a checkpoint: see [`Trainer::resume`]. What has changed in the
    /// run file since is told; what its result depends on is refused unless `allow_changes`.
    ///
    /// # Errors
    ///
    /// Those of [`launch`](Self::launch), and a checkpoint that is not there, damaged, or of another run.
    pub fn launch_from(
        &self,
        resume: Option<Resume>,
        allow_changes: bool,
        show: Show,
        interrupter: Interrupter,
    ) -> Result<Launched, RunError> {
        let show = if Process::this()?.leads() { show } else { Show::Nothing };
        let say = |doing: &str| {
            if show != Show::Nothing {
                tell(doing);
            }
        };
        let leads = Process::this()?.leads();
        if leads {
            Output::check(&self.output)?;
            if let Some(resume) = &resume {
                // What is not there is told before the data is read.
                resume.find(&self.output).map_err(TrainError::from)?;
            }
        }
        say(&self.batch_in_words());
        let parts = self.prepare(say)?;
        if interrupter.should_stop() {
            return Err(RunError::Interrupted);
        }
        let (model, optimizer) = self.fresh(&parts);
        let trainer = self
            .trainer(&parts)
            .show(show)
            .label(format!("{} parameters, {}", model.num_params(), parts.device_name))
            .interrupter(interrupter)
            .checkpoints(self.checkpoints.policy())
            .allow_changes(allow_changes)
            .described(RunText { text: self.to_ron(), compare: changes::compare });
        let trainer = match &resume {
            Some(resume) => trainer.resume(resume.clone()),
            None => trainer,
        };
        if !leads {
            let trained = trainer.saved_elsewhere(&self.output).fit(
                model,
                optimizer,
                self.schedule,
                parts.data.clone(),
            )?;
            return Ok(Launched { sample: None, report: trained.report, best: None });
        }
        let reopened = match &resume {
            Some(resume) => Output::reopen(&self.output, resume)?,
            None => None,
        };
        // Before the first step, so that a run which is killed has them; a run that goes on may yet be refused.
        let describe = |output: &Output| -> Result<(), RunError> {
            output.save_text("run.ron", &(self.to_ron() + "\n"))?;
            Ok(parts.tokenizer.save(output.folder().join("tokenizer.json"))?)
        };
        let (output, goes_on) = match reopened {
            Some(output) => (Arc::new(output), true),
            None => (Arc::new(Output::claim(&self.output)?), false),
        };
        if !goes_on {
            describe(&output)?;
        }
        let trained =
            trainer.claimed(output.clone()).fit(model, optimizer, self.schedule, parts.data.clone())?;
        if goes_on {
            describe(&output)?;
        }
        let report = serde_json::to_string_pretty(&trained.report).unwrap_or_default();
        output.save_text("report.json", &(report + "\n"))?;
        if self.sample.is_some() {
            say("writing a sample");
        }
        let writer = trained.averaged.as_ref().unwrap_or(&trained.model);
        let sample = self.write_sample(writer, &parts)?;
        if let Some(sample) = &sample {
            output.save_text("sample.txt", sample)?;
        }
        Ok(Launched { sample, report: trained.report, best: trained.best })
    }

    /// Finds the device, checks the strategies on it, and reads and tokenizes the text, saying what
    /// it does.
    ///
    /// # Errors
    ///
    /// A device that is not there, strategies that do not fit, or data that cannot be read.
    pub fn prepare(&self, say: impl Fn(&str)) -> Result<Parts, RunError> {
        let (device, device_name) = device::find(&self.device)?;
        let world = self.world(device::alike(&self.device, &device_name))?;
        let device = device.autodiff();
        if !matches!(self.task, TaskConfig::CausalLm { .. }) {
            return Err(RunError::Task { task: self.task.name() });
        }
        // Strategies first, on a model of the same parts but hardly a number: an order that cannot
        // be is found before anything is read or allocated.
        let ModelConfig::Gpt(config) = &self.model;
        let skeleton = self.composed().adapt(config.skeleton(&device), &mut Adaptation::default())?;
        let mut setup = Setup::new(&skeleton, &device);
        self.composed().start(&mut setup)?;
        let origin = match host_device() {
            Some(host) if setup.places_master() => host.autodiff(),
            _ => device.clone(),
        };
        let Loaded { tokenizer, data, longest_row, .. } = DataRun::from(self).load(&say)?;
        let TaskData::CausalLm(data) = data else {
            return Err(RunError::Task { task: self.task.name() });
        };
        if self.early_stopping.is_some() && data.valid.is_none() {
            let place = "the validation part, which `early_stopping` needs,".to_string();
            return Err(DataError::EmptyText { place }.into());
        }
        let prompt = match &self.sample {
            Some(sample) => tokenizer
                .encode(&sample.prompt)
                .map_err(|error| RunError::Prompt { reason: error.to_string() })?,
            None => Vec::new(),
        };
        let context = longest_row.unwrap_or(2).saturating_sub(1).max(1);
        self.require_memory(&tokenizer, context, &device_name)?;
        Ok(Parts { device, origin, device_name, world, prompt, context, data, tokenizer })
    }

    /// A model with weights drawn from the seed, and an optimizer without state.
    pub fn fresh(&self, parts: &Parts) -> (Gpt, ModuleOptimizer) {
        parts.device.seed(self.seed);
        parts.origin.seed(self.seed);
        let ModelConfig::Gpt(config) = &self.model;
        let model = config.init(parts.tokenizer.vocab_size(), parts.context, &parts.origin);
        let optimizer = self.optimizer.build(&model);
        (model, optimizer)
    }

    /// The trainer that the run describes, without output and without display.
    pub fn trainer(&self, parts: &Parts) -> Trainer<impl Strategy<Gpt> + use<>> {
        let trainer = Trainer::new().with(self.composed()).over(parts.world.clone()).seed(self.seed);
        let trainer = trainer.label_smoothing(self.label_smoothing);
        let trainer = match (self.steps, self.epochs) {
            (Some(steps), _) => trainer.steps(steps),
            (None, epochs) => trainer.epochs(epochs.unwrap_or(1)),
        };
        let trainer = match self.evaluate_every {
            Some(updates) => trainer.evaluate_every(updates),
            None => trainer,
        };
        let trainer = match &self.best_by {
            Some(score) => trainer.best_by(score),
            None => trainer,
        };
        let trainer = match self.early_stopping {
            Some(evaluations) => trainer.early_stopping(evaluations),
            None => trainer,
        };
        let trainer = trainer.optimizer_states(self.optimizer.states());
        match self.device_budget {
            Some(ByteSize(bytes)) => trainer.device_budget(bytes),
            None => trainer,
        }
    }

    /// Refuses a model whose weights, gradients and moments cannot be in the machine's memory, with those of all
    /// ranks of this process.
    fn require_memory(&self, tokenizer: &Tokenizer, context: usize, device: &str) -> Result<(), RunError> {
        let ModelConfig::Gpt(config) = &self.model;
        let parameters = config.parameters(tokenizer.vocab_size(), context);
        let needed = self.bytes_per_parameter(Process::this()?.of) * parameters;
        match memory::of_machine() {
            Some(available) if device.starts_with("cpu") && needed > available as f64 => {
                Err(RunError::TooLarge { parameters, needed, available })
            }
            _ => Ok(()),
        }
    }

    fn write_sample(&self, model: &Gpt, parts: &Parts) -> Result<Option<String>, RunError> {
        let Some(sample) = &self.sample else {
            return Ok(None);
        };
        let sampler = Sampler { temperature: sample.temperature, seed: self.seed };
        let tokens = sampler.generate(model, &parts.prompt, sample.tokens).map_err(TrainError::from)?;
        Ok(Some(sample.prompt.clone() + &parts.tokenizer.decode(&tokens)?))
    }
}
