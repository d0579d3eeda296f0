//! The part of a checkpoint that is not tensors: `trainer.ron`.

use firebrick_datasets::Fingerprint;
use firebrick_strategies::StageState;
use serde::{Deserialize, Serialize};

use super::ResumeError;
use super::settings::Settings;
use crate::observe::log::Mark;
use crate::observe::progress::Progress;

/// The version of the format that this program writes and reads.
const VERSION: u32 = 1;

/// The maximum length of the text in bytes.
const MOST_BYTES: usize = 16 << 20;

/// Everything that determines how a run continues, except its tensors: the inputs of each step's random numbers,
/// samples and learning rate, the states of the strategies, and the run file.
///
/// It is plain RON data; reading it executes nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainerState {
    /// The format version.
    version: u32,
    /// The number of updates made.
    pub(crate) step: u64,
    pub(crate) settings: Settings,
    pub(crate) progress: Progress,
    /// The states of the strategies, in order.
    pub(crate) strategies: Vec<StageState>,
    /// The length of the log.
    log_bytes: u64,
    /// The checksum of the log's bytes. Older checkpoints have none.
    log_sum: Option<Fingerprint>,
    /// The run file, if the run has one.
    pub(crate) run: Option<String>,
}

impl TrainerState {
    /// The state of a run as it is now.
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

    /// The number of updates made when it was saved.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// The position in the data.
    pub fn cursor(&self) -> firebrick_datasets::Cursor {
        self.progress.cursor
    }

    /// The states of the strategies, in order.
    pub fn strategies(&self) -> &[StageState] {
        &self.strategies
    }

    /// The position in the log.
    pub(crate) fn log(&self) -> Mark {
        Mark { bytes: self.log_bytes, sum: self.log_sum, updates: self.step }
    }

    /// The run file, if the run had one.
    pub fn run(&self) -> Option<&str> {
        self.run.as_deref()
    }

    /// Serializes the state as RON.
    ///
    /// # Errors
    ///
    /// [`ResumeError::State`] if RON cannot represent a value, which does not occur here.
    pub fn to_ron(&self) -> Result<String, ResumeError> {
        ron::ser::to_string_pretty(self, ron::ser::PrettyConfig::new().depth_limit(4))
            .map_err(|error| ResumeError::State { reason: error.to_string() })
    }

    /// Parses RON text from any source, in the format version that this program writes.
    ///
    /// # Errors
    ///
    /// [`ResumeError::State`] if the text is too long, has another version, or is malformed.
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
