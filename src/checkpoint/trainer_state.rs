//! The part of a checkpoint that is not tensors: `trainer.json`, or `trainer.ron` in an older checkpoint.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use firebrick_checkpoints::{Checkpoint, Folder, TRAINER, TRAINER_IN_RON};
use firebrick_datasets::Fingerprint;
use firebrick_strategies::StageState;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::settings::Settings;
use crate::ResumeError;
use crate::observe::log::Mark;
use crate::observe::progress::Progress;

/// The version of the format that this program writes and reads.
const VERSION: u32 = 1;

/// The maximum length of the text in bytes.
const MOST_BYTES: usize = 16 << 20;

/// Everything that determines how a run continues, except its tensors: the inputs of each step's random numbers,
/// samples and learning rate, the states of the strategies, and the run file.
///
/// It is plain data; reading it executes nothing.
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

    /// Serializes the state as JSON.
    ///
    /// # Errors
    ///
    /// [`ResumeError::State`] if JSON cannot represent a setting of the schedule, such as a map whose keys are not texts.
    pub fn to_json(&self) -> Result<String, ResumeError> {
        let json = serde_json::to_string_pretty(self).map_err(|error| invalid(TRAINER, error.to_string()))?;
        Ok(json + "\n")
    }

    /// Parses the text of a `trainer.json` from any source, in the format version that this program writes.
    ///
    /// # Errors
    ///
    /// [`ResumeError::State`] if the text is too long, has another version, or is malformed.
    pub fn parse(text: &str) -> Result<Self, ResumeError> {
        parse(TRAINER, text, json, json)
    }

    /// Parses the text of a `trainer.ron`, which older versions wrote.
    ///
    /// # Errors
    ///
    /// The same as [`parse`](Self::parse).
    #[cfg(feature = "ron")]
    pub fn parse_ron(text: &str) -> Result<Self, ResumeError> {
        fn read<T: DeserializeOwned>(text: &str) -> Result<T, String> {
            ron::from_str(text).map_err(|error| error.to_string())
        }
        parse(TRAINER_IN_RON, text, read, read)
    }

    /// Reads the state in a checkpoint, which may be one that an older version saved.
    ///
    /// # Errors
    ///
    /// The same as [`parse`](Self::parse), and [`ResumeError::NeedsRon`] if an older version saved the checkpoint, and
    /// `firebrick` was built without the feature `ron`.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self, ResumeError> {
        let file = checkpoint.manifest().trainer_file();
        in_either(&checkpoint.path().join(file), checkpoint.trainer(), OLDER)
    }

    /// Reads the state in the folder of a checkpoint that was not verified.
    ///
    /// # Errors
    ///
    /// The same as [`of`](Self::of), and [`ResumeError::State`] if there is no file, or it cannot be read.
    pub(crate) fn peek(folder: &Path) -> Result<Self, ResumeError> {
        let read = |file| (folder.join(file), fs::read_to_string(folder.join(file)));
        let (path, text) = match read(TRAINER) {
            (_, Err(error)) if error.kind() == ErrorKind::NotFound => read(TRAINER_IN_RON),
            found => found,
        };
        let text = text.map_err(|error| invalid(TRAINER, error.to_string()))?;
        in_either(&path, &text, OLDER)
    }
}

/// What reads the text of a `trainer.ron`.
type ParseRon = fn(&str) -> Result<TrainerState, ResumeError>;

#[cfg(feature = "ron")]
const OLDER: Option<ParseRon> = Some(TrainerState::parse_ron);
#[cfg(not(feature = "ron"))]
const OLDER: Option<ParseRon> = None;

/// Parses the text of a file by its name.
fn in_either(path: &Path, text: &str, older: Option<ParseRon>) -> Result<TrainerState, ResumeError> {
    match older {
        _ if !path.ends_with(TRAINER_IN_RON) => TrainerState::parse(text),
        Some(parse_ron) => parse_ron(text),
        None => Err(ResumeError::NeedsRon { path: path.into() }),
    }
}

/// Parses a text, after its version.
fn parse(
    file: &'static str,
    text: &str,
    version: fn(&str) -> Result<Versioned, String>,
    state: fn(&str) -> Result<TrainerState, String>,
) -> Result<TrainerState, ResumeError> {
    if text.len() > MOST_BYTES {
        return Err(invalid(file, format!("expected at most {MOST_BYTES} bytes, found {}", text.len())));
    }
    let Versioned { version } = version(text).map_err(|reason| invalid(file, reason))?;
    if version != VERSION {
        let reason = format!(
            "expected version {VERSION}, found {version}: resume with the version of Firebrick that wrote it"
        );
        return Err(invalid(file, reason));
    }
    state(text).map_err(|reason| invalid(file, reason))
}

/// The version in a text of any version.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

fn json<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| error.to_string())
}

fn invalid(file: &'static str, reason: String) -> ResumeError {
    ResumeError::State { file, reason }
}

/// The marks of the readable checkpoints in a folder.
///
/// # Errors
///
/// [`ResumeError::NeedsRon`]: the log of such a checkpoint would be lost.
pub(crate) fn marks(checkpoints: &Folder) -> Result<Vec<Mark>, ResumeError> {
    let saved = checkpoints.list().unwrap_or_default();
    let states = saved.iter().map(|saved| match TrainerState::peek(&saved.path) {
        Err(error @ ResumeError::NeedsRon { .. }) => Err(error),
        state => Ok(state.ok()),
    });
    states.filter_map(Result::transpose).map(|state| Ok(state?.log())).collect()
}

#[cfg(test)]
mod tests {
    use firebrick_datasets::{Amount, Cursor};

    use super::*;
    use crate::checkpoint::RecordedSchedule;
    use crate::data::Fingerprints;
    use crate::observe::numbers::EvaluationNumbers;
    use crate::schedule::Polynomial;
    use crate::{Schedule, Warmup};

    /// A state of numbers that text formats tend to lose.
    fn awkward() -> TrainerState {
        let (infinite, third) = (f64::INFINITY, 1.0 / 3.0);
        let warmup = Warmup::Ratio(0.07);
        let schedule = Polynomial { lr: 0.1 + 0.2, power: third, min_lr: 5e-324, warmup, from_zero: true };
        let settings = Settings {
            seed: u64::MAX,
            label_smoothing: third,
            schedule: RecordedSchedule::Known(Schedule::new("Polynomial", schedule)),
            rates_by_function: false,
            total_updates: (1 << 53) + 1,
            global_batch: Amount::Tokens(usize::MAX).into(),
            train_samples: 7,
            data: Fingerprints::default(),
        };
        let evaluation = |loss: f64, score: f64| EvaluationNumbers {
            step: 3,
            loss,
            items: 5,
            seconds: third,
            scores: [("f1".into(), score)].into(),
        };
        let losses = [f64::NAN, infinite, -infinite, third, -0.0, 1.7976931348623157e308];
        let progress = Progress {
            cursor: Cursor { epoch: u64::MAX, consumed: 3 },
            recent: losses.map(|loss| (firebrick_strategies::SavedNumber(loss), 1)).into(),
            infinite_first: Some(1),
            validation: Some(evaluation(f64::NAN, -infinite)),
            best: Some(evaluation(infinite, third)),
            ..Progress::default()
        };
        let strategies = vec![StageState::new("Amp").with("scale", infinite).with("third", third)];
        let log = Mark { bytes: u64::MAX, ..Mark::default() };
        TrainerState::new(u64::MAX, settings, progress, strategies, log, Some("(a: \"\u{e9}\")\n".into()))
    }

    #[test]
    fn every_number_comes_back_to_the_bit() {
        let state = awkward();
        let text = state.to_json().unwrap();
        // NaN equals nothing, but prints alike.
        assert_eq!(format!("{:?}", TrainerState::parse(&text).unwrap()), format!("{state:?}"));
        assert_eq!(TrainerState::parse(&text).unwrap().to_json().unwrap(), text);
    }

    #[test]
    fn errors_say_where_and_what_was_expected() {
        let text = awkward().to_json().unwrap();
        for (other, said) in [
            (text.replace("\"version\": 1", "\"version\": 2"), "expected version 1, found 2: resume with"),
            (text.replace("\"step\": 18", "\"step\": -18"), "trainer.json: invalid type"),
            (text.replace("\"seed\"", "\"sed\""), "unknown field `sed`, expected one of `seed`"),
            (text.replace("\"-inf\"", "\"-if\""), "expected a number, \"inf\", \"-inf\" or \"NaN\" at line"),
            (text.replace("\"rounds\"", "\"skipped\""), "duplicate field `skipped` at line"),
            (text[..text.len() / 2].into(), "trainer.json: EOF while parsing"),
            (" ".repeat(MOST_BYTES + 1), "expected at most 16777216 bytes, found 16777217"),
        ] {
            let error = TrainerState::parse(&other).unwrap_err().to_string();
            assert!(error.starts_with("trainer.json: ") && error.contains(said), "{said}: {error}");
        }
    }

    #[test]
    fn an_older_state_needs_what_reads_it() {
        let path = Path::new("runs/a/checkpoints/step-00000008/trainer.ron");
        let error = in_either(path, "(version: 1)", None).unwrap_err();
        assert!(matches!(error, ResumeError::NeedsRon { .. }));
        let error = error.to_string();
        assert!(error.contains("step-00000008/trainer.ron") && error.contains("feature `ron`"), "{error}");
    }

    #[cfg(feature = "ron")]
    #[test]
    fn an_older_state_is_read_as_it_was_saved() {
        let text = include_str!("../../fuzz/corpus/trainer_state/fingerprints.ron");
        let state = TrainerState::parse_ron(text).unwrap();
        assert_eq!((state.step(), state.cursor().consumed), (290, 136));
        assert_eq!(state.settings.schedule, RecordedSchedule::Known(Schedule::constant(0.01)));
        assert_eq!(state.progress.best.as_ref().unwrap().scores["perplexity"], 1.3168392447946766);
        assert_eq!(TrainerState::parse(&state.to_json().unwrap()).unwrap(), state);
        let error = TrainerState::parse_ron(&text.replace("seed", "sed")).unwrap_err().to_string();
        assert!(error.starts_with("trainer.ron: 5:") && error.contains("sed"), "{error}");
    }
}
