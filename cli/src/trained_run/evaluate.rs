//! Evaluating a trained model on data of its task.

use std::time::Instant;

use burn::tensor::FloatDType;
use firebrick_datasets::{Batch, Batches, DataError, SampleError};
use firebrick_strategies::Pass;
use firebrick_tasks::{Paths, Settled, progress};
use serde::Serialize;

use super::TrainedRun;
use crate::{DataRun, Run, RunError};
use firebrick::engine::feed::first_epoch;
use firebrick::engine::reference::Answers;
use firebrick::engine::session::checked;
use firebrick::{AnyBatch, Data, Evaluation, EvaluationSums, Objective, Scores, TrainError};
use firebrick_models::AnyConfig;

/// The result of an evaluation.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Evaluated {
    /// Mean loss over all supervised items.
    pub loss: f64,
    /// The scores of the task, by name.
    pub scores: Scores,
    /// Number of supervised items.
    pub items: usize,
    /// Number of samples. Those that a long record is cut into count as one.
    pub samples: usize,
    /// Tokens per second, without padding.
    pub tokens_per_second: f64,
}

impl TrainedRun {
    /// Evaluates on the given files, read with the run's data settings, or on the run's own validation data.
    ///
    /// # Errors
    ///
    /// A missing device, unreadable data, or weights that do not match the model.
    pub fn evaluate(&self, data: Option<Paths>, say: impl Fn(&str)) -> Result<Evaluated, RunError> {
        let Self { run, from_folder, output, .. } = self;
        let say: &dyn Fn(&str) = &say;
        let folder = self.weights()?;
        let model = run.model_in(&folder)?;
        let (device, _) = run.find_device(say)?;
        let config = model.config_in(&folder)?;
        let is_own = data.is_none();
        let mut asked = DataRun::from(run);
        asked.evaluate_samples = None;
        // Other names than those of the data come from the run file, or from a classifier that the run started from.
        let is_collected = !from_folder || run.task.labels().is_some_and(|labels| labels.new_head);
        asked.settled = Settled::trained(&folder, &config, is_collected);
        if let Some(paths) = data.or_else(|| run.data.valid.clone()) {
            let whole = &mut asked.data;
            (whole.path, whole.valid, whole.valid_fraction) = (Some(paths), None, 0.0);
            (whole.mix, whole.stream) = (Vec::new(), None);
            asked.settled.is_evaluated = true;
        }
        let is_whole = asked.data.valid_fraction == 0.0;
        let loaded = asked.load(say)?;
        let tokenizer = loaded.tokenizer;
        run.task.require_fit(&config, &tokenizer, Some(loaded.longest_row))?;
        let data = loaded.data.batches_for(&config).ok_or_else(|| run.other_task())?;
        let data = match (is_whole, data.valid.clone()) {
            (true, _) => data.without_valid(),
            (false, Some(valid)) => data.train_on(valid).without_valid(),
            (false, None) => {
                let place = "the validation part of the data".to_string();
                return Err(DataError::EmptyText { place }.into());
            }
        };
        let data = match data.train.batch(0, 0..data.train.samples(0).min(1))?.compared() {
            None => data,
            Some(_) => {
                let first = if is_own { first_samples(run, &config, asked, say)? } else { None };
                Answers::read(output)?.give(first.unwrap_or(data))
            }
        };
        let model = config.load(&folder, &device)?.model;
        let model = run.scoring(&config, model, Some(&folder), &tokenizer)?;
        let pass = Pass::evaluate(&device).computing_in(FloatDType::F32);
        let (started, mut tokens, mut samples) = (Instant::now(), 0, 0);
        let mut sums = EvaluationSums::default();
        let mut progress = progress(say, "samples");
        for batch in first_epoch(&data, 1)? {
            let batch = batch.map_err(|error| of_evaluation(error, is_own))?;
            (tokens, samples) = (tokens + batch.tokens(), samples + batch.records());
            let items = batch.items();
            if items == 0 {
                continue;
            }
            let Evaluation { loss, counts } = model.evaluate(batch, &pass);
            let sum = checked(loss.sum, loss.items, items)?;
            sums.add(sum.try_into_scalar::<f64>().map_err(TrainError::from)?, items, &counts);
            progress(samples);
        }
        if sums.items == 0 {
            let place = "the evaluated data".to_string();
            return Err(DataError::Sample(SampleError::NoItems { place, samples }).into());
        }
        let scores =
            model.scores(&sums.counts).into_iter().map(|score| (score.name.to_string(), score.value));
        Ok(Evaluated {
            loss: sums.loss / sums.items as f64,
            scores: scores.collect(),
            items: sums.items,
            samples,
            tokens_per_second: tokens as f64 / started.elapsed().as_secs_f64().max(1e-9),
        })
    }
}

/// Converts an error of the data that is evaluated, which is the run's own or other files.
fn of_evaluation(error: DataError, is_own: bool) -> RunError {
    match error {
        DataError::Sample(SampleError::NotAsked { position, .. }) if !is_own => RunError::NotAsked(position),
        error => error.into(),
    }
}

/// Returns the first `evaluate_samples` samples of the run's validation data, if the run sets a number. Training has
/// asked the reference model about no others. `whole` reads the validation data as training data, or the end of the
/// training data.
///
/// # Errors
///
/// The data cannot be read, or belongs to another task.
fn first_samples(
    run: &Run,
    config: &AnyConfig,
    whole: DataRun,
    say: &dyn Fn(&str),
) -> Result<Option<Data<AnyBatch>>, RunError> {
    if run.evaluate_samples.is_none() {
        return Ok(None);
    }
    let mut first = whole;
    first.evaluate_samples = run.evaluate_samples;
    first.data.valid.clone_from(&run.data.valid);
    let loaded = first.load(say)?;
    let data = loaded.data.batches_for(config).ok_or_else(|| run.other_task())?;
    let valid = data.valid.clone();
    Ok(valid.map(|valid| data.train_on(valid).without_valid()))
}
