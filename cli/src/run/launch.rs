//! Trains a checked run.

use std::path::PathBuf;
use std::sync::Arc;

use burn::module::Module;
use burn::train::Interrupter;
use serde_json::Value;

use super::prepare::Parts;
use super::{DataRun, Process, Run, changes, export};
use crate::RunError;
use crate::console::{Detail, tell};
use crate::hub::repository_of;
use crate::mlflow::{MlflowConfig, Started};
use firebrick::checkpoint::RunText;
use firebrick::engine::feed::updates_in_epochs;
use firebrick::output::{Output, RUN};
use firebrick::{Adapters, AnyModel, Report, Resume, Show, TrainError, Trained, memory};
use firebrick_models::inference::Question;
use firebrick_models::pretrained::{CONFIG, Folder};
use firebrick_tasks::{Writing, attended, chat_prompt};

/// A run that has been trained.
#[derive(Debug)]
pub struct Launched {
    /// The numbers of the run, in the leading process; empty in the others.
    pub report: Report,
    /// Text that the model generated, if the run asks for it and was not interrupted.
    pub sample: Option<String>,
    /// The weights of the best evaluation, if there was one.
    pub best: Option<PathBuf>,
    /// The Hugging Face folder of the best weights, in the leading process.
    pub pretrained: Option<PathBuf>,
    /// What failed after the training, such as the sample. The weights and the report are saved.
    pub(crate) failed: Option<RunError>,
}

impl Launched {
    /// Returns the run, unless something failed after the training.
    fn finished(mut self) -> Result<Self, RunError> {
        self.failed.take().map_or(Ok(self), Err)
    }
}

impl Run {
    /// Trains the run and writes into the output folder:
    ///
    /// - before the first step: `run.ron`, `tokenizer.json` and `config.json`
    /// - during the run: `metrics.jsonl`, `best.safetensors` and `checkpoints`
    /// - at the end: `model.safetensors`, `ema.safetensors` if the weights are averaged, `report.json`, `sample.txt`,
    ///   and `pretrained`, a Hugging Face folder of the best weights, or of the last ones if none were evaluated
    ///
    /// The sample is generated with the averaged weights, if there are any.
    ///
    /// # Errors
    ///
    /// The device is not available, the data cannot be read, the strategies do not fit, or the training fails.
    pub fn launch(&self, show: Show, interrupter: Interrupter) -> Result<Launched, RunError> {
        self.launch_from(None, false, show, interrupter)
    }

    /// Like [`launch`](Self::launch), but resumes from a checkpoint: see [`Trainer::resume`](firebrick::Trainer::resume).
    /// Rejects changes of the run file since the checkpoint that affect the result, unless `allow_changes` is set; then
    /// it reports them.
    ///
    /// # Errors
    ///
    /// Those of [`launch`](Self::launch), and a checkpoint that is missing, damaged, or of another run.
    pub fn launch_from(
        &self,
        resume: Option<Resume>,
        allow_changes: bool,
        show: Show,
        interrupter: Interrupter,
    ) -> Result<Launched, RunError> {
        self.launch_fitted(false, resume, allow_changes, show, interrupter)?.finished()
    }

    /// Like [`launch_from`](Self::launch_from). If `fits_schedule` is set, phases of the schedule that do not end within
    /// the run's `epochs` are shortened. What fails after the training is part of the result.
    pub(crate) fn launch_fitted(
        &self,
        fits_schedule: bool,
        resume: Option<Resume>,
        allow_changes: bool,
        show: Show,
        interrupter: Interrupter,
    ) -> Result<Launched, RunError> {
        let leads = Process::this()?.leads();
        let show = if leads { show } else { Show::Nothing };
        if leads {
            Output::check(&self.output, resume.is_some())?;
            self.mlflow.as_ref().map_or(Ok(()), MlflowConfig::check)?;
            if let Some(resume) = &resume {
                // Reports a missing checkpoint before the data is read.
                resume.find(&self.output).map_err(TrainError::from)?;
            }
        }
        let (model, folder) = self.named_model()?;
        let say = |doing: &str| {
            // A quiet program prints warnings.
            if show != Show::Nothing || leads && Detail::installed() == Detail::Quiet {
                tell(doing);
            }
        };
        self.require_mesh()?;
        say(&self.batch_summary());
        let own_tokenizer = resume.as_ref().and_then(|resume| resume.tokenizer(&self.output));
        let mut parts = self.prepare_resumed(model, folder, own_tokenizer, &interrupter, say)?;
        require_room_for_sample(self, &parts)?;
        let initializing = self.clone();
        let mut run = self.clone();
        if let (true, Some(epochs)) = (fits_schedule, run.epochs) {
            let micro_batches = DataRun::from(&run).micro_batches();
            let ranks = run.data_ranks();
            let updates = updates_in_epochs(&parts.data, epochs, micro_batches, ranks)?;
            run.shorten_schedule(updates).iter().for_each(|line| say(line));
        }
        let run = &run;
        let (parts, model, optimizer) = attended(&interrupter, "initializing the model", &say, move |say| {
            let (model, optimizer) = initializing.fresh(&parts, say)?;
            if let Some(folder) = &mut parts.folder {
                folder.close_weights();
            }
            Ok::<_, RunError>((parts, model, optimizer))
        })?;
        let trainer = run
            .trainer(&parts)
            .utilization(run.utilization(&parts)?)
            .show(show)
            .label(format!("{} parameters, {}", model.num_params(), parts.device_name))
            .interrupter(interrupter.clone())
            .checkpoints(run.checkpoints.policy())
            .resume(resume.clone())
            .allow_changes(allow_changes)
            .described(RunText::new(run.to_ron(), {
                let run = run.clone();
                move |saved| changes::compare(saved, &run)
            }));
        let (schedule, data) = (run.schedule.clone(), parts.data.clone());
        if !leads {
            let trained = trainer.saved_elsewhere(&run.output);
            trained.fit_for_first(model, optimizer, schedule, data).map_err(interrupted)?;
            return Ok(Launched {
                sample: None,
                report: Report::default(),
                best: None,
                pretrained: None,
                failed: None,
            });
        }
        let reopened = match &resume {
            Some(resume) => Output::reopen(&run.output, resume)?,
            None => None,
        };
        // Written before the first step, so that a killed run has them. A resumed run may still be rejected, so its run
        // file waits.
        let text = run.to_ron() + "\n";
        let (output, goes_on) = match reopened {
            Some(output) => (Arc::new(output), true),
            None => (Arc::new(Output::claim(&run.output)?), false),
        };
        for (name, text) in [(RUN, text), (CONFIG, parts.config.text()?)] {
            match goes_on && output.current().join(name).is_file() {
                true => output.describe_later(name, text),
                false => output.save_text(name, &text)?,
            }
        }
        // A resumed run keeps its tokenizer, unless the folder lacks it.
        let tokenizer = output.current().join("tokenizer.json");
        if !goes_on || !tokenizer.is_file() {
            parts.tokenizer.save(tokenizer)?;
        }
        let mlflow = run.mlflow.as_ref().map(|mlflow| {
            let started = Started { output: output.clone(), settings: changes::settings(run), goes_on };
            mlflow.logger(started)
        });
        let trainer = match mlflow.transpose()? {
            Some(logger) => trainer.observe(logger),
            None => trainer,
        };
        let trainer = trainer.claimed(output.clone());
        let mut trained = trainer.fit(model, optimizer, schedule, data).map_err(interrupted)?;
        trained.report.truncated = parts.truncated.clone();
        match Report::read(output.folder()).filter(|_| !trained.has_gone_on) {
            // The run was already over: keep its report, but for how this process ended.
            Some(report) => {
                let Report { interrupted, stopped, .. } = trained.report;
                trained.report = Report { interrupted, stopped, ..report };
            }
            None => output.save_report(&trained.report)?,
        }
        let report = trained.report.clone();
        let mut launched =
            Launched { sample: None, report, best: trained.best.clone(), pretrained: None, failed: None };
        // Whatever fails from here on must not take away the report of what was trained.
        launched.failed = finish(run, trained, parts, &output, &interrupter, &say, &mut launched).err();
        Ok(launched)
    }
}

/// Writes what follows the training: the Hugging Face folder, the adapter and the sample.
fn finish(
    run: &Run,
    mut trained: Trained<AnyModel>,
    parts: Parts,
    output: &Output,
    interrupter: &Interrupter,
    say: &dyn Fn(&str),
    launched: &mut Launched,
) -> Result<(), RunError> {
    let pretrained = export::export(&trained, &parts, output.folder(), run.end_of_turn(&parts.tokenizer))?;
    launched.pretrained = Some(pretrained);
    if let (Some(adapters), Some(folder)) = (trained.adapters.take(), &parts.folder) {
        // A table that has grown keeps the values that it started from.
        let started_from = parts.adapters.as_ref().map_or_else(Vec::new, |adapters| adapters.given.clone());
        let adapters = adapters.with_given(started_from).with_given(parts.config.grown(folder)?);
        match parts.config.unsavable_adapter(&adapters, &trained.model) {
            Some(reason) => say(&format!(
                "no adapter in the format of PEFT: {reason}. `pretrained` holds the merged model"
            )),
            None => write_adapter(run, &adapters, &trained.model, &parts, folder, output)?,
        }
    }
    if run.sample.is_none() || launched.report.interrupted {
        return Ok(());
    }
    say("writing a sample");
    let (sampled, writer) = (run.clone(), trained.averaged.unwrap_or(trained.model));
    let sample =
        attended(interrupter, "writing a sample", say, move |_| write_sample(&sampled, &writer, &parts));
    launched.sample = sample.map_err(|error| match error {
        RunError::Interrupted => RunError::NoSample(output.folder().into()),
        error => error,
    })?;
    if let Some(sample) = &launched.sample {
        output.save_text("sample.txt", sample)?;
    }
    Ok(())
}

/// Saves adapters under the names of the folder that the run started from, so that they can be applied to its model. If
/// the vocabulary has grown, the tokenizer is saved with them.
fn write_adapter(
    run: &Run,
    adapters: &Adapters,
    model: &AnyModel,
    parts: &Parts,
    folder: &Folder,
    output: &Output,
) -> Result<(), RunError> {
    let adapter = output.folder().join("adapter");
    parts.config.save_adapters(adapters, model, &base_of(run, folder), &adapter)?;
    match folder.is_growing() {
        true => export::save_tokenizer(&adapter, Some(folder.path()), &parts.config, &parts.tokenizer),
        false => Ok(()),
    }
}

/// Returns the name of the model that a run starts from: on the Hub, or its folder.
fn base_of(run: &Run, folder: &Folder) -> String {
    let on_hub = run.model.folder().and_then(repository_of);
    on_hub.unwrap_or_else(|| {
        let path = folder.path();
        std::path::absolute(path).as_deref().unwrap_or(path).display().to_string()
    })
}

/// Rejects a sample whose tokens, keys and values need more memory than the machine has, before the run instead of
/// after it.
fn require_room_for_sample(run: &Run, parts: &Parts) -> Result<(), RunError> {
    let (Some(sample), Some(available)) = (&run.sample, memory::of_machine()) else { return Ok(()) };
    let config: Value = serde_json::from_str(&parts.config.text()?).unwrap_or_default();
    // Heads may share keys and values. Numbers of 16 bits are the smallest.
    let heads = |name: &str| config[name].as_f64();
    let shared = heads("num_key_value_heads").zip(heads("num_attention_heads"));
    let per_width = 2.0 * 2.0 * shared.map_or(1.0, |(keys, queries)| keys / queries);
    let own = parts.config.attention().into_iter().filter(|layers| !layers.of_source && !layers.over_source);
    let width: usize = own.map(|layers| layers.layers * layers.width).sum();
    let cached = match parts.device_name.starts_with("cpu") {
        true => parts.config.positions().map_or(sample.tokens, |most| sample.tokens.min(most)),
        false => 0,
    };
    let needed = per_width * width as f64 * cached as f64 + 8.0 * sample.tokens as f64;
    match needed > available as f64 {
        true => Err(RunError::Sample { tokens: sample.tokens, needed, available }),
        false => Ok(()),
    }
}

/// Converts an error of training, or an interruption before the first update.
fn interrupted(error: TrainError) -> RunError {
    if error.is_interruption() { RunError::Interrupted } else { error.into() }
}

/// Generates the sample from its prompt.
fn write_sample(run: &Run, model: &AnyModel, parts: &Parts) -> Result<Option<String>, RunError> {
    let Some(sample) = &run.sample else {
        return Ok(None);
    };
    // Ranks that share the model leave it on the host.
    let device = model.devices().first().unwrap_or(&parts.device).clone().inner();
    let inference = run.inference(
        &parts.config,
        parts.folder.as_ref(),
        &parts.tokenizer,
        &device,
        sample.decoding(run.seed),
    )?;
    let question = match run.task.writing() {
        Some(Writing::Answer) => chat_prompt(&parts.tokenizer, None, &sample.prompt)?,
        _ => sample.prompt.clone(),
    };
    let answers = parts.config.answers(&model.valid(), &[Question::Text(question)], &inference)?;
    let written = answers.first().and_then(|answer| answer.get("predicted")?.as_str());
    Ok(written.map(|written| match run.task.writing() {
        Some(Writing::FromSource { .. } | Writing::Answer) => written.to_string(),
        _ => sample.prompt.clone() + written,
    }))
}
