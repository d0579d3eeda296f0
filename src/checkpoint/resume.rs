//! Which checkpoint a run continues from, and that checkpoint, opened for all ranks of a process.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::{self, Debug, Formatter};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use burn::train::Interrupter;
use firebrick_checkpoints::{Checkpoint, Folder, Saved, Scalar};
use firebrick_world::Communicator;

use super::TrainerState;
use super::layout::AXES;
use super::settings::{Settings, TRAINING_DATA, VALIDATION_DATA};
use crate::{Change, ResumeError, TrainError};

/// The checkpoint to continue from.
///
/// ```
/// use firebrick::Resume;
///
/// assert_eq!("latest".parse(), Ok(Resume::Latest));
/// assert_eq!("step-1000".parse(), Ok(Resume::Step(1000)));
/// assert_eq!("runs/a/checkpoints/step-00001000".parse(), Ok(Resume::Path("runs/a/checkpoints/step-00001000".into())));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resume {
    /// The newest complete checkpoint in the output folder.
    Latest,
    /// The newest sound checkpoint in the output folder. If nothing was saved there yet, the run starts from the
    /// beginning. Use this for a job that may be restarted.
    ///
    /// Checkpoints that are damaged or in an unknown format are skipped with a warning. If all are, that is an error:
    /// a run never starts over next to its own checkpoints.
    Auto,
    /// The checkpoint in the output folder that was saved after this many updates.
    Step(u64),
    /// A checkpoint in another folder, or the newest checkpoint of the run with this output folder.
    Path(PathBuf),
}

impl FromStr for Resume {
    type Err = Infallible;

    /// Parses `latest`, `auto` or `step-N`; anything else is a path.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        let step = text.strip_prefix("step-").and_then(|step| step.parse().ok());
        Ok(match (text, step) {
            ("latest", _) => Self::Latest,
            ("auto", _) => Self::Auto,
            (_, Some(step)) => Self::Step(step),
            _ => Self::Path(text.into()),
        })
    }
}

impl Resume {
    /// Finds the checkpoint's folder; `None` if the run starts from the beginning.
    pub fn find(&self, output: &Path) -> Result<Option<PathBuf>, ResumeError> {
        let Self::Path(path) = self else { return Ok(self.find_own(output)?.map(|saved| saved.path)) };
        let of_run = path.join(FOLDER);
        match of_run.is_dir() || of_run.is_symlink() {
            true => Ok(Some(newest(of_run)?.path)),
            false if path.exists() => require_checkpoint(path).map(|()| Some(path.clone())),
            false => Err(ResumeError::NoPath { path: path.clone(), nearest: nearest_word(path) }),
        }
    }

    /// The `tokenizer.json` in the folder of the checkpoint's run, if it exists.
    pub fn tokenizer(&self, output: &Path) -> Option<PathBuf> {
        // Opening the checkpoint reports whatever is wrong with it.
        let checkpoint = self.find(output).ok()??;
        // A path of fewer than three components names its parent folders only once it is canonical.
        let whole = match checkpoint.components().count() {
            ..3 => checkpoint.canonicalize().ok()?,
            _ => checkpoint,
        };
        let file = whole.parent()?.parent()?.join("tokenizer.json");
        file.is_file().then_some(file)
    }

    /// The checkpoint in the output folder; `None` if it is to be found elsewhere.
    fn find_own(&self, output: &Path) -> Result<Option<Saved>, ResumeError> {
        let own = output.join(FOLDER);
        match self {
            Self::Path(_) => Ok(None),
            Self::Latest => newest(own).map(Some),
            Self::Auto => match newest(own) {
                Ok(saved) => Ok(Some(saved)),
                Err(ResumeError::NoCheckpoint { .. }) => Ok(None),
                Err(error) => Err(error),
            },
            Self::Step(step) => {
                let mut saved = Folder::new(&own).list()?;
                match saved.iter().position(|saved| saved.step == *step) {
                    Some(place) => Ok(Some(saved.swap_remove(place))),
                    None => {
                        let steps = saved.iter().map(|saved| saved.step).collect();
                        Err(ResumeError::NoStep { folder: own, step: *step, steps })
                    }
                }
            }
        }
    }
}

/// Rejects a path that names neither a checkpoint nor one that is damaged.
fn require_checkpoint(path: &Path) -> Result<(), ResumeError> {
    let found = match path.is_dir() {
        true if path.join("manifest.json").exists() => return Ok(()),
        // Opening it reports what is missing.
        true if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("step-")) => {
            return Ok(());
        }
        true if path.file_name().is_some_and(|name| name == FOLDER) => {
            "a run's folder of checkpoints: name the run's output folder, or one of the checkpoints"
        }
        true => "a folder that is not a checkpoint, and has no folder `checkpoints`",
        false => "a file",
    };
    Err(ResumeError::NotCheckpoint { path: path.into(), found })
}

/// Returns the word that is meant by a mistyped one.
fn nearest_word(path: &Path) -> Option<String> {
    let text = path.to_str()?.to_lowercase();
    let digits = text.trim_start_matches(|c: char| !c.is_ascii_digit());
    let step = format!("step-{digits}");
    let words = ["latest", "auto", step.as_str()].map(|word| (strsim::jaro_winkler(&text, word), word));
    let (alike, word) = words.into_iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    // The same word again is no help: its number is too large for a number of updates.
    (alike > 0.8 && !word.ends_with('-') && word != path.to_str()?).then(|| word.to_string())
}

/// The folder of a run's checkpoints, within its output folder.
pub const FOLDER: &str = "checkpoints";

/// The newest complete checkpoint, without verifying its checksums.
fn newest(folder: PathBuf) -> Result<Saved, ResumeError> {
    let all = Folder::new(&folder);
    match (all.latest()?, all.incomplete()?) {
        (Some(newest), _) => Ok(newest),
        (None, problems) if problems.is_empty() => Err(ResumeError::NoCheckpoint { folder }),
        (None, problems) => {
            let problems = problems.iter().map(ToString::to_string).collect();
            Err(ResumeError::NoneSound { folder, problems })
        }
    }
}

/// An open checkpoint, all of whose bytes have been verified.
#[derive(Debug)]
pub(crate) struct Resumed {
    pub checkpoint: Checkpoint,
    pub state: TrainerState,
    /// The problems of newer checkpoints that were skipped.
    pub passed_over: Vec<String>,
}

/// The run file of a run, with a function that compares it with another.
#[derive(Clone)]
pub struct RunText {
    pub(crate) text: String,
    compare: Arc<dyn Fn(&str) -> Compared + Send + Sync>,
}

impl RunText {
    /// Creates it from the text of the run file, and what compares a text in a checkpoint with this one.
    pub fn new(text: String, compare: impl Fn(&str) -> Compared + Send + Sync + 'static) -> Self {
        Self { text, compare: Arc::new(compare) }
    }
}

/// Prints the text.
impl Debug for RunText {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RunText").field(&self.text).finish()
    }
}

/// The changes since a run was saved.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Compared {
    /// Changes that affect the result.
    pub of_result: Vec<Change>,
    /// Changes that are impossible.
    pub impossible: Vec<Change>,
}

/// A slot for the checkpoint that all ranks of a process read. The first rank to need it opens it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared(Arc<Mutex<Option<Arc<Resumed>>>>);

impl Shared {
    /// Opens the checkpoint that `resume` names; `None` if the run starts from the beginning. The first rank finds it
    /// and informs the others. Every rank calls this.
    ///
    /// # Errors
    ///
    /// There is no such checkpoint, it is invalid, or the run was interrupted.
    pub fn open(
        &self,
        resume: &Resume,
        output: &Path,
        world: &Communicator,
        interrupter: &Interrupter,
    ) -> Result<Option<Arc<Resumed>>, TrainError> {
        let found = match resume {
            Resume::Path(_) => resume.find(output)?,
            _ => {
                let own = match world.rank() {
                    0 => self.find_own(resume, output, interrupter)?,
                    _ => None,
                };
                let step = broadcast_scalar(world, own.map_or(-1.0, |step| step as f64))?;
                (step >= 0.0).then(|| Folder::new(output.join(FOLDER)).checkpoint(step as u64))
            }
        };
        let Some(path) = found else { return Ok(None) };
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(resumed) = &*shared {
            return Ok(Some(resumed.clone()));
        }
        let resumed = Arc::new(Resumed::open(&path, interrupter)?);
        *shared = Some(resumed.clone());
        Ok(Some(resumed))
    }

    /// The step of the checkpoint in the output folder. For `auto`, the checkpoint is also opened.
    fn find_own(
        &self,
        resume: &Resume,
        output: &Path,
        interrupter: &Interrupter,
    ) -> Result<Option<u64>, ResumeError> {
        let found = resume.find_own(output)?;
        if *resume != Resume::Auto || found.is_none() {
            return Ok(found.map(|saved| saved.step));
        }
        let resumed = Resumed::newest_sound(&Folder::new(output.join(FOLDER)), interrupter)?;
        let step = resumed.state.step;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(resumed));
        Ok(Some(step))
    }
}

/// Rejects numbers that no optimizer has after this many updates. The optimizer increments its counts, and a count
/// near the integer's maximum would end the program at the next update.
pub(super) fn plausible(scalars: &BTreeMap<String, Scalar>, updates: u64) -> Result<(), ResumeError> {
    for (name, scalar) in scalars {
        let is_plausible = match *scalar {
            // Loading the state compares it with the parameter.
            _ if name.ends_with(AXES) => true,
            Scalar::UInt(count) => count <= updates,
            Scalar::Int(count) => u64::try_from(count).is_ok_and(|count| count <= updates),
            Scalar::Float(number) => number.is_finite(),
            Scalar::Bool(_) => true,
        };
        if !is_plausible {
            let reason = format!(
                "`{name}` is {scalar:?}: expected a count of at most the {updates} updates that were made, or a finite number; the checkpoint was not saved by a run, use another"
            );
            return Err(ResumeError::Optimizer { reason });
        }
    }
    Ok(())
}

/// Sends the first rank's number to all ranks.
pub(crate) fn broadcast_scalar(world: &Communicator, number: f64) -> Result<f64, TrainError> {
    match world.size() {
        1 => Ok(number),
        _ => Ok(world.numbers("where the run starts", &[number])?[0][0]),
    }
}

impl Resumed {
    /// Opens the checkpoint in this folder.
    fn open(path: &Path, interrupter: &Interrupter) -> Result<Self, ResumeError> {
        let checkpoint = Checkpoint::open_while(path, |_, _| !interrupter.should_stop())?;
        let state = TrainerState::of(&checkpoint)?;
        plausible(checkpoint.optimizer().scalars(), state.step)?;
        match state.step == checkpoint.manifest().step {
            true => Ok(Self { checkpoint, state, passed_over: Vec::new() }),
            false => {
                let reason = format!("it is of step {}, and its checkpoint of another", state.step);
                Err(ResumeError::State { file: checkpoint.manifest().trainer_file(), reason })
            }
        }
    }

    /// Opens the newest valid checkpoint of a run.
    fn newest_sound(folder: &Folder, interrupter: &Interrupter) -> Result<Self, ResumeError> {
        let mut problems = Vec::new();
        for saved in folder.newest_first()? {
            match Self::open(&saved.path, interrupter) {
                Ok(resumed) => return Ok(Self { passed_over: problems, ..resumed }),
                // It is sound as far as this program can tell, so an earlier one would lose updates.
                Err(error @ (ResumeError::Interrupted | ResumeError::NeedsRon { .. })) => return Err(error),
                Err(error @ ResumeError::State { .. }) => {
                    problems.push(format!("{}: {error}", saved.path.display()));
                }
                Err(error) => problems.push(error.to_string()),
            }
        }
        problems.extend(folder.incomplete()?.iter().map(ToString::to_string));
        Err(ResumeError::NoneSound { folder: folder.path().into(), problems })
    }

    /// Checks that the data contains the position to continue from.
    ///
    /// # Errors
    ///
    /// The data has fewer samples, which happens only with other data or a forged checkpoint.
    pub fn require_place(&self, samples: impl Fn(u64) -> usize) -> Result<(), ResumeError> {
        let cursor = self.state.cursor();
        let found = samples(cursor.epoch);
        match cursor.consumed < found {
            true => Ok(()),
            false => {
                let reason = format!(
                    "expected a place in the {found} samples of epoch {}, found {} of them consumed: resume with the data that was saved",
                    cursor.epoch, cursor.consumed
                );
                Err(ResumeError::State { file: self.checkpoint.manifest().trainer_file(), reason })
            }
        }
    }

    /// Compares the saved run with this one, and returns the changes that are allowed.
    ///
    /// # Errors
    ///
    /// A change is impossible or not allowed.
    pub fn check(
        &self,
        now: &Settings,
        run: Option<&RunText>,
        allowed: bool,
    ) -> Result<Vec<Change>, ResumeError> {
        let mut changes = self.state.settings.changes(now);
        let mut cannot_be = self.state.settings.impossible_changes(now);
        if let (Some(saved), Some(run)) = (self.state.run(), run) {
            let Compared { of_result, impossible } = (run.compare)(saved);
            cannot_be.extend(impossible);
            // The run file names most settings more precisely; use the trainer's names only for settings that it
            // lacks.
            let known = ["global batch", TRAINING_DATA, VALIDATION_DATA];
            changes.retain(|change| known.contains(&change.field.as_str()));
            // Data with the same fingerprint is the same data at any path.
            let is_same_data = now.data.train.is_some() && self.state.settings.data.train == now.data.train;
            let is_path =
                |change: &Change| change.field.starts_with("data.") && change.field.contains("path");
            changes.extend(of_result.into_iter().filter(|change| !is_same_data || !is_path(change)));
        }
        if !cannot_be.is_empty() {
            return Err(ResumeError::Impossible(cannot_be));
        }
        if changes.is_empty() || allowed { Ok(changes) } else { Err(ResumeError::Changed(changes)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_word_has_the_nearest_one_in_its_error() {
        for (given, meant) in [
            ("stpe-4", "(did you mean `step-4`?)"),
            ("step4", "(did you mean `step-4`?)"),
            ("Latest", "(did you mean `latest`?)"),
            ("lates", "(did you mean `latest`?)"),
            ("atuo", "(did you mean `auto`?)"),
            ("runs/a", "nothing here to resume from: write `latest`"),
            ("step-99999999999999999999", "nothing here to resume from: write `latest`"),
        ] {
            let resume: Resume = given.parse().unwrap_or_else(|never| match never {});
            let error = resume.find(Path::new("run")).unwrap_err().to_string();
            assert!(error.contains(meant), "{error}");
        }
    }

    #[test]
    fn a_path_without_a_checkpoint_is_refused_with_what_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["empty", "own/checkpoints"] {
            std::fs::create_dir_all(at(name)).unwrap();
        }
        std::fs::write(at("file"), "").unwrap();
        for (name, said) in [
            ("empty", "found a folder that is not a checkpoint, and has no folder `checkpoints`"),
            ("own/checkpoints", "name the run's output folder"),
            ("file", "found a file"),
        ] {
            let error = Resume::Path(at(name)).find(Path::new("run")).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains("expected a checkpoint"), "{name}: {error}");
        }
        let error = Resume::Path(at("own")).find(Path::new("run")).unwrap_err();
        assert!(matches!(error, ResumeError::NoCheckpoint { .. }), "{error}");
    }

    #[test]
    fn an_optimizer_counts_no_more_updates_than_were_made() {
        let check = |scalar| plausible(&[("a/time".to_string(), scalar)].into(), 7);
        for scalar in
            [Scalar::UInt(7), Scalar::UInt(0), Scalar::Int(3), Scalar::Float(0.1), Scalar::Bool(true)]
        {
            check(scalar).unwrap();
        }
        let forged = [
            Scalar::UInt(8),
            Scalar::UInt(u64::MAX),
            Scalar::Int(-1),
            Scalar::Int(i64::MAX),
            Scalar::Float(f64::NAN),
            Scalar::Float(f64::INFINITY),
        ];
        for scalar in forged {
            let error = check(scalar).unwrap_err().to_string();
            assert!(error.contains("`a/time`") && error.contains("7 updates"), "{error}");
        }
    }
}
