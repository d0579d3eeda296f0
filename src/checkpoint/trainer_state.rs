//! What a checkpoint says of a run beside its tensors: `trainer.ron`.

use firebrick_datasets::{Amount, Fingerprint};
use firebrick_strategies::StageState;
use serde::{Deserialize, Serialize};

use super::ResumeError;
use crate::Schedule;
use crate::data::Fingerprints;
use crate::log::Mark;
use crate::progress::Progress;

/// The version of the text that this program writes and reads.
const VERSION: u32 = 1;

/// The most bytes of text that are read.
const MOST_BYTES: usize = 16 << 20;

/// Everything that decides how a run goes on, but for its tensors: what the random numbers, the samples and the
/// learning rate of each step are functions of, the states of the strategies, and the run file.
///
/// It is data in RON: reading it runs nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainerState {
    /// Of this format.
    version: u32,
    /// Updates made.
    pub(crate) step: u64,
    pub(crate) settings: Settings,
    pub(crate) progress: Progress,
    /// The strategies, in their order.
    pub(crate) strategies: Vec<StageState>,
    /// How long the log was.
    log_bytes: u64,
    /// The sum of its bytes. Older checkpoints have none.
    #[serde(default)]
    log_sum: Option<Fingerprint>,
    /// The run file, where the run has one.
    pub(crate) run: Option<String>,
}

/// What the run's numbers depend on, as far as the trainer knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    pub seed: u64,
    #[serde(default)]
    pub label_smoothing: f64,
    pub schedule: Schedule,
    pub total_updates: u64,
    /// Of an update, on all ranks.
    pub global_batch: GlobalBatch,
    /// Of the first epoch.
    pub train_samples: usize,
    /// What the data is known by. Older checkpoints have none.
    #[serde(default)]
    pub data: Fingerprints,
}

/// How much goes into an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum GlobalBatch {
    Samples(usize),
    Tokens(usize),
}

impl From<Amount> for GlobalBatch {
    fn from(amount: Amount) -> Self {
        match amount {
            Amount::Samples(samples) => Self::Samples(samples),
            Amount::Tokens(tokens) => Self::Tokens(tokens),
        }
    }
}

impl TrainerState {
    /// Of a run as it is now.
    pub(crate) fn new(
        step: u64,
        settings: Settings,
        progress: Progress,
        strategies: Vec<StageState>,
        log: Mark,
        run: Option<String>,
    ) -> Self {
        let Mark { bytes: log_bytes, sum: log_sum, .. } = log;
        Self { version: VERSION, step, settings, progress, strategies, log_bytes, log_sum, run }
    }

    /// Updates made when it was saved.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Where the data stood.
    pub fn cursor(&self) -> firebrick_datasets::Cursor {
        self.progress.cursor
    }

    /// The states of the strategies, in their order.
    pub fn strategies(&self) -> &[StageState] {
        &self.strategies
    }

    /// How far the log was.
    pub(crate) fn log(&self) -> Mark {
        Mark { bytes: self.log_bytes, sum: self.log_sum, updates: self.step }
    }

    /// The run file, where the run had one.
    pub fn run(&self) -> Option<&str> {
        self.run.as_deref()
    }

    /// As text.
    ///
    /// # Errors
    ///
    /// [`ResumeError::State`] of what RON cannot hold, which nothing here is.
    pub fn to_ron(&self) -> Result<String, ResumeError> {
        ron::ser::to_string_pretty(self, ron::ser::PrettyConfig::new().depth_limit(4))
            .map_err(|error| ResumeError::State { reason: error.to_string() })
    }

    /// Reads what was written by [this version](env!("CARGO_PKG_VERSION")) of the format, from anyone.
    ///
    /// # Errors
    ///
    /// [`ResumeError::State`]: it is too long, of another version, or not such a text.
    pub fn parse(text: &str) -> Result<Self, ResumeError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let state = |reason: String| ResumeError::State { reason };
        if text.len() > MOST_BYTES {
            return Err(state(format!("expected at most {MOST_BYTES} bytes, found {}", text.len())));
        }
        let Versioned { version } = ron::from_str(text).map_err(|error| state(error.to_string()))?;
        if version != VERSION {
            let reason = format!(
                "expected version {VERSION}, found {version}: resume with the version of Firebrick that wrote it"
            );
            return Err(state(reason));
        }
        ron::from_str(text).map_err(|error| state(error.to_string()))
    }
}
