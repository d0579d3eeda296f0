//! A task on data.

use std::cell::{Cell, RefCell};

use burn::train::Interrupter;
use firebrick_datasets::{Amount, Skipped, Truncated};

use crate::attended::attended;
use crate::load::{Loading, Prints};
use crate::problem::{Problem, require};
use crate::token_cache::TokenCache;
use crate::{DataConfig, LoadError, Loaded, Settled, TaskConfig};

/// A task on data: all that batches depend on.
///
/// ```no_run
/// use firebrick_datasets::collators::LabeledBatch;
/// use firebrick_tasks::{DataConfig, Dataset, TokenClassificationTask, TokenizerConfig};
///
/// let data = DataConfig::new("train.conll", TokenizerConfig::File("tokenizer.json".into()));
/// let loaded = Dataset::new(TokenClassificationTask::default(), data, 16).load(|doing| eprintln!("{doing}"))?;
/// let batches = loaded.data.batches::<LabeledBatch>();
/// # Ok::<(), firebrick_tasks::LoadError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Dataset {
    /// The task.
    pub task: TaskConfig,
    /// The data and how it is cut into samples. Its paths are those of this machine.
    pub data: DataConfig,
    /// The size of a micro-batch.
    pub micro_batch: Amount,
    /// The size of the global batch, over all ranks and micro-batches of an update, by which samples are grouped. Default:
    /// a micro-batch.
    pub global_batch: Amount,
    /// Seeds the order of the samples and the masking. Default: [`SEED`](Self::SEED).
    pub seed: u64,
    /// The number of samples of the validation data that are evaluated, its first ones. Default: all.
    pub evaluate_samples: Option<usize>,
    /// What an existing model or run settles. Default: nothing.
    pub settled: Settled,
    /// Whether tokens are added to the cache, if this process [uses it](TokenCache::install). Default: yes.
    pub adds_to_cache: bool,
}

impl Dataset {
    /// The seed, unless another one is given.
    pub const SEED: u64 = 1337;

    /// Creates the data of a task, in batches of `samples`.
    pub fn new(task: impl Into<TaskConfig>, data: DataConfig, samples: usize) -> Self {
        Self {
            task: task.into(),
            data,
            micro_batch: Amount::Samples(samples),
            global_batch: Amount::Samples(samples),
            seed: Self::SEED,
            evaluate_samples: None,
            settled: Settled::default(),
            adds_to_cache: true,
        }
    }

    /// Reads and tokenizes the data, and reports progress through `say`.
    ///
    /// # Errors
    ///
    /// [`LoadError::Setting`] if a setting is invalid; the data cannot be read, or does not fit the task.
    pub fn load(&self, say: impl Fn(&str)) -> Result<Loaded, LoadError> {
        self.load_until(&Interrupter::new(), say)
    }

    /// Like [`load`](Self::load), but stops immediately when `interrupter` receives a stop request.
    ///
    /// # Errors
    ///
    /// Those of [`load`](Self::load), and [`LoadError::Interrupted`].
    pub fn load_until(&self, interrupter: &Interrupter, say: impl Fn(&str)) -> Result<Loaded, LoadError> {
        if let Some(problem) = self.first_problem() {
            return Err(problem.into());
        }
        let dataset = self.clone();
        let loaded =
            attended(interrupter, "preparing", &say, move |say| dataset.task.load(&dataset.loading(say)))?;
        loaded.tell(say);
        Ok(loaded)
    }

    fn first_problem(&self) -> Option<Problem> {
        let of = |field, amount| {
            let (Amount::Samples(number) | Amount::Tokens(number)) = amount;
            require(number > 0, field, "at least 1", number)
        };
        of("micro_batch", self.micro_batch)
            .or_else(|| of("global_batch", self.global_batch))
            .or_else(|| self.task.first_problem(&self.data))
    }

    /// Returns the cache of tokens, if the data uses it.
    fn cache(&self, say: &dyn Fn(&str)) -> Option<TokenCache> {
        if !self.data.cache {
            return None;
        }
        let cache = TokenCache::of_runs().unwrap_or_else(|error| {
            say(&format!("warning: nothing is kept for later runs: {error}"));
            None
        });
        cache.map(|cache| cache.adding(self.adds_to_cache))
    }

    pub(crate) fn loading<'a>(&'a self, say: &'a dyn Fn(&str)) -> Loading<'a> {
        Loading {
            config: &self.data,
            settled: &self.settled,
            seed: self.seed,
            micro_batch: self.micro_batch,
            global_batch: self.global_batch,
            evaluate_samples: self.evaluate_samples,
            texts: &self.task,
            say,
            skipped: Skipped::default(),
            truncated: Truncated::default(),
            cut_texts: RefCell::default(),
            prints: Prints::default(),
            cache: self.cache(say),
            cache_failed: Cell::new(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MaskedLmTask, TokenizerConfig};

    #[test]
    fn a_setting_that_is_out_of_range_is_named() {
        let error = |data, samples| {
            Dataset::new(MaskedLmTask::default(), data, samples).load(|_| ()).unwrap_err().to_string()
        };
        let data = || DataConfig::new("data.jsonl", TokenizerConfig::Characters);
        assert_eq!(error(data(), 0), "`micro_batch` must be at least 1, found 0");
        let wrong = DataConfig { valid_fraction: 2.0, ..data() };
        assert!(error(wrong, 4).starts_with("`data.valid_fraction` must be "));
    }
}
