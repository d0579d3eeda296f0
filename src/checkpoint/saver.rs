//! Saves of a run, one at a time, in parallel with its training.
//!
//! Each rank copies its part at a step boundary, and a thread of its own writes the copy. At the following
//! boundaries, the ranks exchange their progress. Once all files of all ranks are synced, the first rank publishes
//! the checkpoint, again in a thread. The ranks therefore never wait for a disk, and never disagree on which
//! checkpoint exists.
//!
//! After an error that the ranks do not share, each waits for its own threads and removes what they have written, so that
//! nothing writes into the folder once the run has ended.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use firebrick_checkpoints::{CheckpointError, FileEntry, Folder, Manifest, Saved, Staging};
use firebrick_datasets::Cursor;
use firebrick_world::Communicator;

use super::Checkpoints;
use super::layout::Layout;
use super::snapshot::Snapshot;
use crate::beside::Beside;
use crate::gather::gather;
use crate::{ResumeError, TrainError};

/// Saves a run according to a policy.
pub(crate) struct Saver {
    policy: Checkpoints,
    folder: Folder,
    run_id: String,
    world: Communicator,
    pub layout: Arc<Layout>,
    phase: Phase,
    /// The number of saves begun in this process; each has its own staging folder.
    attempts: u64,
    retries_left: u32,
    /// Whether a failed save is to be retried at the next boundary.
    retries: bool,
    /// The position in the data at the start of the last save.
    last: Option<(u64, Cursor)>,
    /// The saves that have ended since the last look.
    pub done: Vec<Ended>,
    /// The number of updates at the newest checkpoint of this process.
    pub newest: Option<u64>,
    /// The error of the last save, if it failed.
    pub failed: Option<String>,
}

/// The outcome of a save.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub step: u64,
    /// Seconds from the start of the snapshot to the end.
    pub seconds: f64,
    /// Seconds for which training paused.
    pub pause: f64,
    pub error: Option<String>,
}

/// The phase of the current save.
enum Phase {
    Nothing,
    Writing {
        save: Save,
        files: Worker<RankFiles>,
    },
    /// Only the first rank publishes.
    Publishing {
        save: Save,
        published: Option<Worker<Saved>>,
    },
}

struct Save {
    step: u64,
    metric: Option<f64>,
    /// Whether the run's losses at this point are finite.
    sound: bool,
    staging: Staging,
    began: Instant,
    pause: f64,
}

/// The result of a rank's writing.
struct RankFiles {
    files: Vec<FileEntry>,
    trainer: String,
    /// Whether all of the rank's numbers are finite.
    finite: bool,
}

type Worker<T> = Beside<Result<T, ResumeError>>;

/// A rank's progress, as the ranks exchange it.
const DONE: f64 = 1.0;
const FAILED: f64 = 2.0;
/// Done, with numbers that are not finite.
const UNSOUND: f64 = 3.0;

impl Saver {
    pub fn new(
        policy: Checkpoints,
        folder: Folder,
        run_id: String,
        world: Communicator,
        layout: Arc<Layout>,
    ) -> Self {
        Self {
            policy,
            folder,
            run_id,
            world,
            layout,
            phase: Phase::Nothing,
            attempts: 0,
            retries_left: policy.retries,
            retries: false,
            last: None,
            done: Vec::new(),
            newest: None,
            failed: None,
        }
    }

    /// Whether a save should begin at this boundary.
    pub fn is_due(&self, updates: u64) -> bool {
        self.retries || self.is_regular(updates)
    }

    /// Whether the policy wants this step and it is not the last one saved. A skipped update changes only the
    /// position in the data.
    fn is_regular(&self, updates: u64) -> bool {
        self.policy.is_due(updates) && self.last.is_none_or(|(step, _)| step != updates)
    }

    /// Whether the last save failed and is to be retried.
    pub fn tries_again(&self) -> bool {
        self.retries
    }

    /// Whether the policy wants a save at the end and the run's current state is not saved yet.
    pub fn is_due_at_end(&self, updates: u64, cursor: Cursor, interrupted: bool) -> bool {
        let wanted = interrupted || self.policy.every.is_some();
        wanted && (self.last != Some((updates, cursor)) || self.failed.is_some())
    }

    /// Records that the run continues from this checkpoint, so that there is nothing to save before the next step.
    pub fn starts_from(&mut self, updates: u64, cursor: Cursor) {
        self.last = Some((updates, cursor));
    }

    /// Begins a save of the snapshot that `copy` takes; training waits only for the copy. `sound` says whether the
    /// run's losses are finite.
    ///
    /// # Errors
    ///
    /// The state cannot be copied, or a rank is lost.
    pub fn begin(
        &mut self,
        updates: u64,
        cursor: Cursor,
        metric: Option<f64>,
        sound: bool,
        copy: impl FnOnce(&Arc<Layout>) -> Result<Snapshot, TrainError>,
    ) -> Result<(), TrainError> {
        self.finish()?;
        let began = Instant::now();
        let snapshot = copy(&self.layout)?;
        // A save that is due on its own gets all its retries, even if an earlier one is being retried.
        if self.is_regular(updates) || !self.retries {
            self.retries_left = self.policy.retries;
        }
        self.failed = None;
        self.last = Some((updates, cursor));
        self.retries = false;
        self.attempts += 1;
        let staging = self.folder.staging(updates, &format!("{}-{}", self.run_id, self.attempts));
        let save = Save {
            step: updates,
            metric,
            sound,
            staging: staging.clone(),
            began,
            pause: began.elapsed().as_secs_f64(),
        };
        // An update was made since the newest checkpoint, which shows that training can continue from it.
        let is_proven = self.world.rank() == 0 && self.newest.is_some_and(|newest| newest < updates);
        let proven = is_proven.then(|| self.folder.clone());
        let policy = self.policy;
        let (leads, run) = (self.world.rank() == 0, self.folder.path().parent().map(Path::to_path_buf));
        let files = Beside::start(move || {
            // A new folder in its place would hold this checkpoint alone.
            if let Some(run) = run.filter(|run| leads && !run.as_os_str().is_empty() && !run.is_dir()) {
                let doing = "save into the folder of the run".into();
                let source = ErrorKind::NotFound.into();
                return Err(CheckpointError::Io { doing, path: run, source }.into());
            }
            if let Some(folder) = proven {
                let _ = folder.prune(&policy.keep(policy.last));
            }
            let (state, trainer) = snapshot.into_rank_state();
            let files = staging.write_rank(&state)?;
            Ok(RankFiles { files, trainer: trainer.to_json()?, finite: state.is_finite()? })
        });
        self.phase = Phase::Writing { save, files };
        Ok(())
    }

    /// Whether this rank still works on its part of the save in progress. With `holds`, it does, because a file that the
    /// checkpoint refers to is still being written.
    pub fn is_busy(&self, holds: bool) -> bool {
        match &self.phase {
            Phase::Writing { files, .. } => holds || !files.is_over(),
            Phase::Publishing { published, .. } => {
                published.as_ref().is_some_and(|published| !published.is_over())
            }
            Phase::Nothing => false,
        }
    }

    /// Called at a step boundary: advances the save in progress, unless any rank was [busy](Self::is_busy) with it in the
    /// step.
    ///
    /// # Errors
    ///
    /// A rank is lost. A failed save is not an error.
    pub fn poll(&mut self, any_busy: bool) -> Result<(), TrainError> {
        match any_busy || !self.is_under_way() {
            true => Ok(()),
            false => self.advance(),
        }
    }

    /// Whether a save is in progress.
    pub fn is_under_way(&self) -> bool {
        !matches!(self.phase, Phase::Nothing)
    }

    /// Waits for the save in progress.
    ///
    /// # Errors
    ///
    /// The errors of [`poll`](Self::poll).
    pub fn finish(&mut self) -> Result<(), TrainError> {
        while self.is_under_way() {
            self.advance()?;
        }
        Ok(())
    }

    /// Takes the next step of the protocol, and waits for this rank's part of it.
    fn advance(&mut self) -> Result<(), TrainError> {
        match std::mem::replace(&mut self.phase, Phase::Nothing) {
            Phase::Nothing => Ok(()),
            Phase::Writing { save, files } => {
                let written = files.wait();
                let codes = self.agree(match &written {
                    Ok(RankFiles { finite: true, .. }) => DONE,
                    Ok(_) => UNSOUND,
                    Err(_) => FAILED,
                });
                // Without the code of this rank nobody publishes it.
                let codes = codes.inspect_err(|_| drop(save.staging.discard()))?;
                match (written, codes.iter().position(|code| *code == FAILED)) {
                    (Ok(RankFiles { files, trainer, .. }), None) => {
                        let sound = save.sound && !codes.contains(&UNSOUND);
                        self.publish(Save { sound, ..save }, files, trainer)
                    }
                    (written, rank) => {
                        self.discard(&save);
                        let other = format!("rank {} could not write its files", rank.unwrap_or_default());
                        self.ends(&save, Err(written.err().map_or(other, |error| error.to_string())));
                        Ok(())
                    }
                }
            }
            Phase::Publishing { save, published } => {
                let result = published.map(Beside::wait);
                let codes = self.agree(match &result {
                    Some(Err(_)) => FAILED,
                    _ => DONE,
                })?;
                if let Some(Err(_)) = &result {
                    self.discard(&save);
                }
                let result = match result {
                    Some(Err(error)) => Err(error.to_string()),
                    _ if codes.contains(&FAILED) => Err("the first rank could not publish it".into()),
                    _ => Ok(()),
                };
                self.ends(&save, result);
                Ok(())
            }
        }
    }

    /// Gives up the save in progress, without the other ranks: waits until this rank writes no more, and removes what was
    /// written. What is being published has all files of all ranks, so that stays.
    pub fn abandon(&mut self) {
        match std::mem::replace(&mut self.phase, Phase::Nothing) {
            Phase::Nothing | Phase::Publishing { published: None, .. } => {}
            Phase::Writing { save, files } => {
                files.end();
                // Another rank may still write into the folder: the last one removes all of it.
                let _ = save.staging.discard();
                self.ends(&save, Err("the run ended before all ranks had written their files".into()));
            }
            Phase::Publishing { save, published: Some(published) } => {
                let result = match published.end() {
                    Some(Ok(_)) => Ok(()),
                    Some(Err(error)) => Err(error.to_string()),
                    None => Err("its thread panicked".into()),
                };
                if result.is_err() {
                    self.discard(&save);
                }
                self.ends(&save, result);
            }
        }
    }

    /// Sends this rank's file entries to the first rank, which publishes those of all ranks.
    fn publish(&mut self, save: Save, files: Vec<FileEntry>, trainer: String) -> Result<(), TrainError> {
        let entries = self.entries_of_all(files).inspect_err(|_| self.discard(&save))?;
        let published = (self.world.rank() == 0).then(|| {
            let manifest =
                Manifest::new(&self.run_id, save.step, self.world.size(), env!("CARGO_PKG_VERSION"))
                    .aliases(self.layout.aliases.clone())
                    .metric(save.metric.unwrap_or(f64::NAN))
                    .lora_scale(self.layout.lora_scale)
                    .packed(self.layout.packed())
                    .sound(save.sound)
                    .files(entries);
            let (staging, folder, policy) = (save.staging.clone(), self.folder.clone(), self.policy);
            Beside::start(move || {
                let saved = staging.publish(manifest, &trainer)?;
                // The next step shows whether training can continue from this checkpoint; until then, the one
                // before is kept too. A failed removal is harmless and retried after a later save.
                let _ = folder.prune(&policy.keep(policy.last.max(2)));
                Ok(saved)
            })
        });
        self.phase = Phase::Publishing { save, published };
        Ok(())
    }

    /// Removes checkpoints that the policy does not keep, once the run is over and its last weights are good.
    pub fn prune(&self) {
        if self.world.rank() == 0 && self.newest.is_some() {
            let _ = self.folder.prune(&self.policy.keep(self.policy.last));
        }
    }

    /// Marks the checkpoint of the current weights as unsound, if there is one: training cannot continue from it.
    pub fn disown(&self, updates: u64) -> Result<bool, ResumeError> {
        match self.world.rank() {
            0 => Ok(self.folder.disown(updates)?),
            _ => Ok(false),
        }
    }

    /// The file entries of all ranks.
    fn entries_of_all(&self, files: Vec<FileEntry>) -> Result<Vec<FileEntry>, TrainError> {
        if self.world.size() == 1 {
            return Ok(files);
        }
        Ok(gather(&self.world, "the files of a checkpoint", &files)?.concat())
    }

    fn agree(&self, mine: f64) -> Result<Vec<f64>, TrainError> {
        match self.world.size() {
            1 => Ok(vec![mine]),
            _ => Ok(self.world.numbers("how far a checkpoint is", &[mine])?.into_iter().flatten().collect()),
        }
    }

    /// Removes the staging folder. All threads that wrote into it have ended.
    fn discard(&self, save: &Save) {
        if self.world.rank() == 0 {
            // If this fails, the next run that claims the folder removes it.
            let _ = save.staging.discard();
        }
    }

    fn ends(&mut self, save: &Save, result: Result<(), String>) {
        self.failed = result.err();
        if self.failed.is_none() {
            self.newest = Some(save.step);
        }
        if self.failed.is_some() && self.retries_left > 0 {
            self.retries_left -= 1;
            self.retries = true;
        }
        self.done.push(Ended {
            step: save.step,
            seconds: save.began.elapsed().as_secs_f64(),
            pause: save.pause,
            error: self.failed.clone(),
        });
    }
}

impl Drop for Saver {
    /// Nothing may write into the folder once the run is over, however it ends.
    fn drop(&mut self) {
        self.abandon();
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;
    use std::time::Duration;

    use burn::nn::LinearConfig;
    use burn::tensor::Device;
    use firebrick_strategies::{Composition, Setup, Zero};

    use super::*;
    use crate::checkpoint::StateAt;
    use crate::checkpoint::settings::{GlobalBatch, RecordedSchedule, Settings};
    use crate::data::Fingerprints;
    use crate::engine::agreement::any;
    use crate::observe::log::Mark;
    use crate::observe::progress::Progress;
    use crate::optim::AdamW;
    use crate::testing::on_ranks;
    use crate::{Schedule, TrainerState};

    /// Begins the first save of a rank in this folder.
    fn begun(world: &Communicator, folder: &Path) -> Saver {
        let device = Device::flex().autodiff();
        let model = LinearConfig::new(4, 4).init(&device);
        let mut setup = Setup::new(&model, &device).among(world.clone());
        let mut stages = Zero::stage(0).start(&mut setup).unwrap();
        let layout = Arc::new(Layout::of(&model, &mut stages, world, None));
        let policy = Checkpoints::every(1);
        let mut saver = Saver::new(policy, Folder::new(folder), "run".into(), world.clone(), layout);
        let settings = Settings {
            seed: 0,
            label_smoothing: 0.0,
            schedule: RecordedSchedule::Known(Schedule::constant(1e-3)),
            rates_by_function: false,
            total_updates: 1,
            global_batch: GlobalBatch::Samples(1),
            train_samples: 1,
            data: Fingerprints::default(),
        };
        let state = TrainerState::new(1, settings, Progress::default(), Vec::new(), Mark::default(), None);
        let copy = |layout: &Arc<Layout>| {
            let optimizer = AdamW::new().init().unwrap();
            Ok::<_, TrainError>(Snapshot::take(
                layout,
                world,
                &model,
                None,
                &StateAt::Host(&optimizer),
                state,
            )?)
        };
        saver.begin(1, Cursor::default(), None, true, copy).unwrap();
        saver
    }

    #[test]
    fn a_checkpoint_is_published_after_the_files_that_it_tells_of() {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = || Folder::new(folder.path());
        on_ranks(2, |world| {
            let mut saver = begun(&world, folder.path());
            // Where a step tells all ranks.
            let poll = |saver: &mut Saver, holds| {
                saver.poll(any(&world, "busy", saver.is_busy(holds)).unwrap()).unwrap();
            };
            // The first rank is still writing its best model.
            for _ in 0..50 {
                poll(&mut saver, world.rank() == 0);
                sleep(Duration::from_millis(1));
            }
            assert!(saver.is_under_way() && checkpoints().list().unwrap().is_empty());
            while saver.is_under_way() {
                poll(&mut saver, false);
            }
            assert_eq!((saver.newest, &saver.failed), (Some(1), &None));
        });
        assert_eq!(checkpoints().list().unwrap().len(), 1);
    }

    #[test]
    fn a_save_that_is_given_up_leaves_nothing_unless_all_ranks_have_written() {
        for all_have_written in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            on_ranks(2, |world| {
                let mut saver = begun(&world, folder.path());
                if all_have_written {
                    saver.poll(false).unwrap();
                }
                drop(saver);
            });
            let left = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
            let staged = left.filter(|name| name.to_string_lossy().starts_with('.')).count();
            let published = Folder::new(folder.path()).list().unwrap().len();
            assert_eq!((staged, published), (0, usize::from(all_have_written)));
        }
    }
}
