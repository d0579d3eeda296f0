//! An open checkpoint that a run continues from.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use burn::train::Interrupter;
use firebrick_checkpoints::{Checkpoint, Folder, Scalar};
use firebrick_world::Communicator;

use super::change::{TRAINING_DATA, VALIDATION_DATA};
use super::lender::AXES;
use super::resume::{FOLDER, Resume};
use super::settings::Settings;
use super::{Change, ResumeError, TrainerState};
use crate::TrainError;

/// An open checkpoint, all of whose bytes have been verified.
#[derive(Debug)]
pub(crate) struct Resumed {
    pub checkpoint: Checkpoint,
    pub state: TrainerState,
    /// The problems of newer checkpoints that were skipped.
    pub passed_over: Vec<String>,
}

/// The run file of a run, with a function that compares it with another.
#[derive(Clone, Debug)]
pub struct RunText {
    /// The text of the run file.
    pub text: String,
    /// Compares the text in a checkpoint with this one.
    pub compare: fn(saved: &str, now: &str) -> Compared,
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
            let Compared { of_result, impossible } = (run.compare)(saved, &run.text);
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
