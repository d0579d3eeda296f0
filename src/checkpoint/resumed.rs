//! The checkpoint that a run continues from, once it is open.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use firebrick_checkpoints::{Checkpoint, Folder};
use firebrick_strategies::Communicator;

use super::resume::{FOLDER, Resume};
use super::trainer_state::Settings;
use super::{Change, ResumeError, TrainerState};
use crate::TrainError;

/// An open checkpoint: every byte of it has been checked.
#[derive(Debug)]
pub(crate) struct Resumed {
    pub checkpoint: Checkpoint,
    pub state: TrainerState,
}

/// The run file of a run, and how to compare it with another's.
#[derive(Clone, Debug)]
pub(crate) struct RunText {
    pub text: String,
    pub compare: fn(saved: &str, now: &str) -> Compared,
}

/// What has changed since a run was saved.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Compared {
    /// Changes that the result depends on.
    pub of_result: Vec<Change>,
    /// Changes that cannot be made.
    pub impossible: Vec<Change>,
}

/// The place for a checkpoint that all ranks of a process read: the first to come opens it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared(Arc<Mutex<Option<Arc<Resumed>>>>);

impl Shared {
    /// The checkpoint that `resume` names; `None` where the run is to start from the beginning. The first rank
    /// finds it, and tells the others. Every rank calls this.
    ///
    /// # Errors
    ///
    /// There is none, or it is not what it should be.
    pub fn open(
        &self,
        resume: &Resume,
        output: &Path,
        world: &Communicator,
    ) -> Result<Option<Arc<Resumed>>, TrainError> {
        let found = match resume {
            Resume::Path(_) => resume.find(output)?,
            _ => {
                let own = if world.rank() == 0 { resume.find_own(output)? } else { None };
                let step = told(world, own.map_or(-1.0, |saved| saved.step as f64))?;
                (step >= 0.0).then(|| Folder::new(output.join(FOLDER)).checkpoint(step as u64))
            }
        };
        let Some(path) = found else { return Ok(None) };
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(resumed) = &*shared {
            return Ok(Some(resumed.clone()));
        }
        let checkpoint = Checkpoint::open(&path).map_err(ResumeError::from)?;
        let state = TrainerState::parse(checkpoint.trainer())?;
        if state.step != checkpoint.manifest().step {
            let reason = format!("it is of step {}, and its checkpoint of another", state.step);
            return Err(ResumeError::State { reason }.into());
        }
        let resumed = Arc::new(Resumed { checkpoint, state });
        *shared = Some(resumed.clone());
        Ok(Some(resumed))
    }
}

/// A number of the first rank, on all ranks.
pub(crate) fn told(world: &Communicator, number: f64) -> Result<f64, TrainError> {
    match world.size() {
        1 => Ok(number),
        _ => Ok(world.numbers("where the run starts", &[number])?[0][0]),
    }
}

impl Resumed {
    /// Whether the data has the place that the run goes on from.
    ///
    /// # Errors
    ///
    /// It has fewer samples, as only other data or a forged checkpoint can have.
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
                Err(ResumeError::State { reason })
            }
        }
    }

    /// Compares the run that was saved with this one. The changes that are allowed are returned.
    ///
    /// # Errors
    ///
    /// A change that cannot be made, or is not allowed.
    pub fn check(
        &self,
        now: &Settings,
        run: Option<&RunText>,
        allowed: bool,
    ) -> Result<Vec<Change>, ResumeError> {
        let mut changes = self.state.settings.changes(now);
        if let (Some(saved), Some(run)) = (self.state.run(), run) {
            let Compared { of_result, impossible } = (run.compare)(saved, &run.text);
            if !impossible.is_empty() {
                return Err(ResumeError::Impossible(impossible));
            }
            // The run file names them better; only what it cannot know is left to the trainer.
            changes.retain(|change| ["global batch", "training data"].contains(&change.field.as_str()));
            changes.extend(of_result);
        }
        match changes.is_empty() || allowed {
            true => Ok(changes),
            false => Err(ResumeError::Changed(changes)),
        }
    }
}
