//! Checks values of a run file that parse but are invalid.

use std::sync::Arc;

use firebrick::TrainingSettings;
use firebrick_strategies::StrategyRecipe;
use firebrick_tasks::DataConfig;
use firebrick_tasks::problem::{Problem, positive, require};

use super::from_run_file::FromRunFile;
use super::link_config::MOST_LATENCY;
use super::param_groups::param_groups;
use super::{
    BatchConfig, CheckpointsConfig, DataRun, LinkConfig, ReadWith, Registries, Run, RunStrategy, ron_path,
    written,
};
use crate::{Caret, RunError};

/// Rejects invalid or contradictory values before anything is read or allocated.
pub(super) fn check(run: &impl FromRunFile, file: &str, text: &str) -> Result<(), RunError> {
    match run.first_problem() {
        None => Ok(()),
        Some(Problem { field, expected, found }) => {
            let caret = Caret::in_file(text, ron_path::start_of(text, &field));
            let line = caret.line();
            Err(RunError::Value { file: file.into(), line, field, expected, found, caret })
        }
    }
}

impl FromRunFile for Run {
    fn first_problem(&self) -> Option<Problem> {
        length(self)
            .or_else(|| DataRun::from(self).first_problem())
            .or_else(|| model(self))
            .or_else(|| optimizer(self))
            .or_else(|| adapter(self))
            .or_else(|| param_groups(self))
            .or_else(|| schedule(self))
            .or_else(|| label_smoothing(self))
            .or_else(|| sample(self))
            .or_else(|| ranks(self))
            .or_else(|| mesh(self))
            .or_else(|| require(!self.output.as_os_str().is_empty(), "output", "a folder", "\"\""))
    }

    fn rate_settings(&self) -> &'static [&'static str] {
        self.schedule.rate_settings()
    }

    fn settle(&mut self, registries: &Arc<Registries>) {
        self.registries = ReadWith(registries.clone());
        let mesh = self.mesh.take().map(|mesh| RunStrategy::new("Mesh", mesh));
        self.strategies.extend(mesh);
    }

    fn fit_schedule(&mut self) -> Vec<String> {
        self.steps.map(|steps| self.shorten_schedule(steps)).unwrap_or_default()
    }
}

impl FromRunFile for DataRun {
    fn first_problem(&self) -> Option<Problem> {
        batch(&self.batch)
            .or_else(|| strategies(&self.strategies, &self.batch))
            .or_else(|| self.task.first_problem(&self.data))
    }
}

fn length(run: &Run) -> Option<Problem> {
    let training = run.training();
    let has_length = training.steps.or(training.epochs).is_some();
    require(has_length, "steps", TrainingSettings::EITHER, "neither")
        .or_else(|| training.check().err().map(Problem::from))
        .or_else(|| require(run.evaluate_samples != Some(0), "evaluate_samples", "at least 1", 0))
        .or_else(|| {
            let CheckpointsConfig { every, keep_last, keep_every, grace, .. } = run.checkpoints;
            require(every != Some(0), "checkpoints.every", "at least 1 update", 0)
                .or_else(|| require(keep_last > 0, "checkpoints.keep_last", "at least 1", 0))
                .or_else(|| require(keep_every != Some(0), "checkpoints.keep_every", "at least 1 update", 0))
                .or_else(|| require(grace != Some(0), "checkpoints.grace", "at least 1 second", 0))
        })
        .or_else(|| {
            let peak = run.peak_flops.unwrap_or(1.0);
            require(
                peak >= 1.0 && peak.is_finite(),
                "peak_flops",
                "finite and at least 1, such as 312e12",
                peak,
            )
        })
        .or_else(|| {
            let evaluated =
                run.early_stopping.is_none() || run.data.valid.is_some() || run.data.valid_fraction > 0.0;
            require(evaluated, "data.valid_fraction", "above 0 where `early_stopping` is given", 0)
        })
}

/// A number of ranks far above any use: a typo is reported before a thread starts for each rank.
const MOST_RANKS: usize = 100_000;

fn ranks(run: &Run) -> Option<Problem> {
    let ranks = run.ranks.unwrap_or(1);
    require((1..=MOST_RANKS).contains(&ranks), "ranks", "at least 1 and at most 100000", ranks)
        .or_else(|| require(run.deadline != Some(0), "deadline", "at least 1 second", 0))
        .or_else(|| link(run.link.as_ref()?))
}

fn link(link: &LinkConfig) -> Option<Problem> {
    let LinkConfig { bytes_per_second, latency } = *link;
    let expected = format!("at least 0 and at most {MOST_LATENCY} seconds");
    require(bytes_per_second.0 > 0, "link.bytes_per_second", "at least 1 byte", 0)
        .or_else(|| require((0.0..=MOST_LATENCY).contains(&latency), "link.latency", &expected, latency))
}

fn batch(batch: &BatchConfig) -> Option<Problem> {
    let one = batch.micro.is_some() != batch.micro_tokens.is_some();
    let found = if batch.micro.is_some() { "both" } else { "neither" };
    require(one, "batch.micro", "given, or else `batch.micro_tokens`, and not both", found)
        .or_else(|| positive("batch.micro", batch.micro.unwrap_or(1)))
        .or_else(|| positive("batch.micro_tokens", batch.micro_tokens.unwrap_or(1)))
        .or_else(|| positive("batch.accumulate", batch.accumulate.unwrap_or(1)))
        .or_else(|| {
            let alone = batch.accumulate_dtype.is_some() && batch.accumulate.is_none();
            let expected = "left out where `batch.accumulate` is: nothing is summed";
            require(!alone, "batch.accumulate_dtype", expected, "given")
        })
}

/// Checks that the factors have a model that they can be of.
fn adapter(run: &Run) -> Option<Problem> {
    let folder = run.adapter.as_ref()?;
    let expected = "left out unless the model is `Pretrained`: fresh weights are not those of an adapter";
    require(!folder.as_os_str().is_empty(), "adapter", "a folder", "\"\"")
        .or_else(|| require(run.model.folder().is_some(), "adapter", expected, folder.display()))
}

fn model(run: &Run) -> Option<Problem> {
    let problem = run.model.check().err().map(|error| Problem::of_setting("model", "model", &error));
    problem.or_else(|| {
        let most = run
            .data
            .max_length
            .filter(|most| *most > DataConfig::LONGEST_ROW && run.model.limits_positions())?;
        let expected = format!(
            "at most a million tokens for a fresh `{}`, which limits the positions of a row",
            run.model.name()
        );
        require(false, "data.max_length", &expected, most)
    })
}

fn optimizer(run: &Run) -> Option<Problem> {
    let settings =
        run.optimizer.check().map_err(|error| Problem::of_setting("optimizer", "optimizer", &error));
    let rate = || run.optimizer.check_rate(run.schedule.peak());
    settings.and_then(|()| rate().map_err(|error| Problem::of_setting("schedule", "optimizer", &error))).err()
}

fn schedule(run: &Run) -> Option<Problem> {
    let checked = match run.steps {
        // The number of updates in `epochs` is known only after the data is loaded.
        None => run.schedule.check_numbers(),
        steps => run.schedule.check(steps),
    };
    let error = checked.err()?;
    let (expected, found) = error.expected_and_found();
    Some(Problem { field: format!("schedule.{}", error.field()), expected, found })
}

fn strategies(strategies: &[RunStrategy], batch: &BatchConfig) -> Option<Problem> {
    strategies.iter().enumerate().find_map(|(index, strategy)| {
        let field = format!("strategies.{index}");
        let problem = strategy.check().err().map(|error| Problem::of_setting(&field, &field, &error));
        problem.or_else(|| {
            let twice = strategy.effects().sums.is_some() && batch.accumulate.is_some();
            let expected = "left out where `batch.accumulate` is given: they are the same";
            require(!twice, &field, expected, written(strategy))
        })
    })
}

fn mesh(run: &Run) -> Option<Problem> {
    let error = run.mesh.as_ref()?.check().err()?;
    Some(Problem::of_setting("mesh", "mesh", &error))
}

fn label_smoothing(run: &Run) -> Option<Problem> {
    let share = run.label_smoothing;
    let smooths = share == 0.0 || run.task.smooths_labels();
    let expected = format!("left out for this task ({}), whose loss is not over classes", run.task.name());
    require(smooths, "label_smoothing", &expected, share)
}

fn sample(run: &Run) -> Option<Problem> {
    let sample = run.sample.as_ref()?;
    let expected = "left out, or the task one that writes, such as `CausalLm` or `Seq2Seq`";
    require(run.task.writing().is_some(), "sample", expected, run.task.name())
        .or_else(|| positive("sample.tokens", sample.tokens))
        .or_else(|| {
            let possible = sample.temperature >= 0.0 && sample.temperature.is_finite();
            require(possible, "sample.temperature", "at least 0", sample.temperature)
        })
        .or_else(|| {
            let within = sample.top_p > 0.0 && sample.top_p <= 1.0;
            require(within, "sample.top_p", "above 0 and at most 1", sample.top_p)
        })
}

#[cfg(test)]
#[path = "optimizer_tests.rs"]
mod optimizer_tests;
