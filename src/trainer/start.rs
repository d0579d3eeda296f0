//! Where a rank starts and where it writes: from the beginning into a new folder, or from a checkpoint.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::module::Module;
use firebrick_checkpoints::Folder;
use firebrick_world::Communicator;

use super::{Destination, Trainer};
use crate::checkpoint;
use crate::checkpoint::{Layout, Resumed, Saver, Settings, Shared, broadcast_scalar, marks};
use tracing::{info, warn};

use crate::checkpoint::best;
use crate::checkpoint::best::BestFile;
use crate::engine::session::Session;
use crate::engine::training_loop::saves::Saves;
use crate::observe::log::{Log, Past};
use crate::observe::observers::{Observers, SharedObservers, Tally};
use crate::observe::progress::Progress;
use crate::observe::tensorboard::Writer;
use crate::observe::terminal::Show;
use crate::output::{Output, is_within};
use crate::score::BestBy;
use crate::{Change, Checkpoints, TrainError};

/// Where a rank starts and where it writes.
pub(super) struct Start {
    /// The checkpoint that the run continues from.
    pub from: Option<Arc<Resumed>>,
    /// The allowed changes since the checkpoint.
    changes: Vec<Change>,
    /// Whether this data has a fingerprint but the checkpoint's data has none.
    data_is_unknown: bool,
    /// Whether the run continues in the folder that holds the checkpoint.
    in_place: bool,
    /// The first rank's output folder, once it is claimed.
    pub output: Option<Arc<Output>>,
    /// The run's id in its checkpoints.
    run_id: String,
    /// Whether to print lines on standard error.
    tells: bool,
}

impl<M: 'static> Trainer<M> {
    /// Finds and opens the checkpoint to continue from, if any, and compares the settings. Every rank calls it.
    pub(super) fn start(
        &self,
        rank: &Communicator,
        shared: &Shared,
        settings: &Settings,
    ) -> Result<Start, TrainError> {
        let output = match (&self.output, &self.resume) {
            (Some(Destination::Claimed(output)), _) if rank.rank() == 0 => Some(output.clone()),
            (Some(Destination::Folder(folder)), Some(resume)) if rank.rank() == 0 => {
                Output::reopen(folder, resume)?.map(Arc::new)
            }
            _ => None,
        };
        let from = match (&self.resume, &self.output) {
            (Some(resume), Some(output)) => {
                shared.open(resume, output.folder(), rank, &self.interrupter.0)?
            }
            _ => None,
        };
        let (changes, in_place) = match (&from, &self.output) {
            (Some(from), Some(output)) => (
                from.check(settings, self.run.as_ref(), self.allow_changes)?,
                is_within(from.checkpoint.path(), output.folder()),
            ),
            _ => (Vec::new(), false),
        };
        let saved = from.as_ref().map(|from| from.state.settings.data.train);
        let data_is_unknown = saved == Some(None) && settings.data.train.is_some();
        Ok(Start {
            from,
            changes,
            data_is_unknown,
            in_place,
            output,
            run_id: String::new(),
            tells: self.tells(rank),
        })
    }

    /// Claims the output folder, after all other checks have passed, and reports where the run continues. Every rank
    /// calls it, and no rank writes before it.
    pub(super) fn claim(&self, start: &mut Start, rank: &Communicator) -> Result<(), TrainError> {
        if let (0, None, Some(Destination::Folder(folder))) = (rank.rank(), &start.output, &self.output) {
            start.output = Some(Arc::new(Output::claim(folder)?));
        }
        // 48 bits, because the ranks exchange numbers as f64, which holds them exactly.
        let drawn = broadcast_scalar(rank, (rand::random::<u64>() >> 16) as f64)?;
        start.run_id = match &start.from {
            Some(from) => from.checkpoint.manifest().run.clone(),
            None => format!("{:012x}", drawn as u64),
        };
        if let (Some(from), 0) = (&start.from, rank.rank()) {
            // Warn about corrupt and unsound checkpoints that were skipped for an older one. With a dashboard, the
            // warning shows after it has left the screen.
            let checkpoints = Folder::new(from.checkpoint.path().parent().unwrap_or(Path::new("")));
            let incomplete = checkpoints.incomplete().unwrap_or_default();
            let mut unsound = checkpoints.list().unwrap_or_default();
            unsound.retain(|saved| !saved.sound && saved.step > from.state.step());
            let unsound = unsound
                .iter()
                .map(|saved| format!("{}: its weights or losses are not finite", saved.path.display()));
            let passed_over = from.passed_over.iter().cloned().chain(unsound);
            let passed_over = passed_over.chain(incomplete.iter().map(ToString::to_string));
            passed_over.for_each(|problem| warn!("passed over a checkpoint: {problem}"));
        }
        if let (Some(from), true) = (&start.from, self.tells(rank)) {
            let (step, path) = (from.state.step(), from.checkpoint.path().display());
            info!("going on after update {step}, from {path}");
            start.changes.iter().for_each(|change| info!("changed: {change}"));
            if start.data_is_unknown {
                info!(
                    "note: the checkpoint has no fingerprint of its data, so nothing tells whether this data is the same",
                );
            }
        }
        Ok(())
    }

    /// Builds the state that saves checkpoints, if the run saves any.
    pub(super) fn saves(
        &self,
        start: &Start,
        settings: Settings,
        session: &Session<M>,
        layout: Arc<Layout>,
        best_by: BestBy,
    ) -> Option<Saves>
    where
        M: Module,
    {
        let (policy, output) = (self.checkpoints?, self.output.as_ref()?);
        let policy = Checkpoints { highest: best_by.is_higher(), ..policy };
        let folder = Folder::new(output.folder().join(checkpoint::FOLDER));
        let world = session.world().clone();
        let tells = self.tells(&world);
        if let (true, Some(every), Some(evaluate)) =
            (tells && policy.best > 0, policy.every, self.settings.evaluate_every)
            && every % evaluate != 0
        {
            info!(
                "note: `keep_best` compares only checkpoints that were evaluated, and the run saves every {every} updates and evaluates every {evaluate}: save at a multiple of {evaluate}"
            );
        }
        let mut saver = Saver::new(policy, folder, start.run_id.clone(), world, layout);
        if let (Some(from), true) = (&start.from, start.in_place) {
            saver.starts_from(session.updates(), from.state.progress.cursor);
        }
        let run = self.run.as_ref().map(|run| run.text.clone());
        Some(Saves { saver, settings, best_by, run, tells })
    }

    /// Whether to print lines on standard error: they are visible and disturb no dashboard.
    pub(super) fn tells(&self, rank: &Communicator) -> bool {
        rank.rank() == 0 && self.show != Show::Nothing && !self.show.is_dashboard()
    }
}

impl Start {
    /// Returns the progress of the run, the file of its best model, and its observers, which are those of the report and
    /// the log, TensorBoard's files, and those of the program. If the run continues in its own folder, the log keeps the
    /// lines up to `updates`. Every rank calls it.
    pub fn history(
        &self,
        updates: u64,
        rank: &Communicator,
        program: SharedObservers,
    ) -> Result<(Progress, BestFile, Observers), TrainError> {
        let folder = self.output.as_ref().map(|output| output.current());
        let (folder, tells) = (folder.as_deref(), self.tells);
        let (log, past, board) = match (&self.from, folder) {
            (Some(from), Some(own)) if self.in_place => {
                let checkpoints = Folder::new(own.join(checkpoint::FOLDER));
                let (log, past) = Log::going_on(own, &from.state.log(), &marks(&checkpoints)?, tells)?;
                let board = Writer::resume(own, past.board_from, &past.board_lines, tells)?;
                (log, past, Some(board))
            }
            _ => {
                let board = folder.map(|folder| Writer::new(folder, tells)).transpose()?;
                (Log::new(folder, tells)?, Past::default(), board)
            }
        };
        if past.has_holes && tells {
            info!("note: metrics.jsonl lacks steps that were made before: it was changed or lost");
        }
        let (tally, progress, best) = match &self.from {
            None => Default::default(),
            Some(from) => {
                let mut progress = from.state.progress.clone().going_on(updates);
                let best = self.find_best(from, &mut progress, rank)?;
                (Tally::going_on(updates, past), progress, best)
            }
        };
        let mut observers = Observers::new(log, tally, program);
        if let Some(board) = board {
            observers.add(board);
        }
        Ok((progress, BestFile::new(best, tells), observers))
    }

    /// Finds the weights of the best evaluation before the checkpoint, which the first rank keeps. If they are gone, the
    /// next evaluation becomes the best.
    fn find_best(
        &self,
        from: &Resumed,
        progress: &mut Progress,
        rank: &Communicator,
    ) -> Result<Option<(PathBuf, u64)>, TrainError> {
        let Some(step) = progress.best.as_ref().map(|best| best.step) else { return Ok(None) };
        let found = match rank.rank() {
            0 => run_of(from).and_then(|run| best::find(run, step)),
            _ => None,
        };
        // All ranks must agree on which evaluation is the best, since they gather its weights together.
        let is_found = broadcast_scalar(rank, f64::from(found.is_some()))? > 0.0;
        if !is_found {
            progress.best = None;
            if self.tells {
                info!(
                    "note: the weights of the best evaluation, of step {step}, are gone: the next is the best"
                );
            }
        }
        Ok(found.map(|path| (path, step)))
    }
}

/// The run folder that a checkpoint belongs to.
pub(super) fn run_of(from: &Resumed) -> Option<&Path> {
    from.checkpoint.path().parent()?.parent()
}
