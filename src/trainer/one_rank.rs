//! Who the ranks are, and what each does, from its strategies' start to its report.

use std::path::Path;
use std::sync::Arc;

use burn::optim::ModuleOptimizer;
use firebrick_checkpoints::Folder;
use firebrick_datasets::{Batch, DataError};
use firebrick_strategies::{Communicator, Stage, Strategy, World};

use super::{Destination, Length, Trained, Trainer, Watch};
use crate::checkpoint::{self, Change, Resumed, Saver, Saves, Settings, Shared, told};
use crate::console::tell;
use crate::dry_run::dry_run;
use crate::events::Events;
use crate::feed::{Feed, Share, updates_in_epochs, windows_in_epoch};
use crate::history::History;
use crate::inside_burn_train::InsideBurnTrain;
use crate::log::Log;
use crate::output::{Output, is_within};
use crate::rank_report::RankReport;
use crate::report::Report;
use crate::session::Prepared;
use crate::training_loop::{Plan, TrainingLoop};
use crate::{Data, Objective, Schedule, Show, TrainError};

impl<S> Trainer<S> {
    /// Who the ranks are.
    pub(super) fn world<M>(&self) -> Result<World, TrainError>
    where
        S: Strategy<M>,
    {
        match (&self.world, self.strategies.world()) {
            (Some(trainer), Some(strategies)) if trainer != strategies => Err(TrainError::TwoWorlds {
                trainer: format!("{trainer:?}"),
                strategies: format!("{strategies:?}"),
            }),
            (Some(world), _) | (None, Some(world)) => Ok(world.clone()),
            (None, None) => Ok(World::solo()),
        }
    }

    /// What one rank does. It returns the model where that is the `root`, or on all without one.
    #[allow(clippy::too_many_arguments, reason = "what `fit` is given, for one rank")]
    pub(super) fn train<M, B>(
        self,
        rank: Communicator,
        model: M,
        optimizer: ModuleOptimizer,
        schedule: Schedule,
        data: Data<B>,
        watch: Watch,
        root: Option<usize>,
        shared: &Shared,
    ) -> Result<Option<Trained<M>>, TrainError>
    where
        M: Objective<B> + 'static,
        B: Batch,
        S: Strategy<M>,
    {
        // What is wrong is told before the folder is touched, and before ranks wait for one another.
        let prepared = Prepared::new(&self.strategies, model, &optimizer, rank.clone())?;
        let window = prepared.window();
        let plan = self.plan(&data, window, rank.size())?;
        let (warmup, total) = (schedule.warmup_updates(), plan.total_updates);
        if warmup >= total {
            return Err(TrainError::Warmup { warmup, total });
        }
        let settings = Settings {
            seed: self.seed,
            schedule,
            total_updates: total,
            global_batch: data.micro_batch.times(window).times(rank.size()).into(),
            train_samples: data.train.samples(0),
        };
        let leads = rank.rank() == 0;
        let mut output = match &self.output {
            Some(Destination::Claimed(output)) if leads => Some(output.clone()),
            Some(Destination::Folder(folder)) if leads => match &self.resume {
                Some(resume) => Output::reopen(folder, resume)?.map(Arc::new),
                None => None,
            },
            _ => None,
        };
        let from = self.open(&rank, shared)?;
        let allowed = match &from {
            Some(from) => from.check(&settings, self.run.as_ref(), self.allow_changes)?,
            None => Vec::new(),
        };
        let session = prepared.start(optimizer, schedule, self.seed, total)?;
        let mut session = session.within(self.device_budget, self.optimizer_states)?;
        let layout = Arc::new(session.layout());
        if let Some(from) = &from {
            session.resume(&layout, from)?;
        }
        dry_run(&mut session, &data, window)?;
        let goes_on = from.as_ref().is_some_and(|from| self.is_own(from.checkpoint.path()));
        if let (true, None, Some(Destination::Folder(folder))) = (leads, &output, &self.output) {
            output = Some(Arc::new(Output::claim(folder)?));
        }
        let progress = from.as_ref().map(|from| from.state.progress.clone()).unwrap_or_default();
        let kept = from.as_ref().filter(|_| goes_on).map(|from| from.state.log_bytes);
        let tells = leads && self.show != Show::Nothing && !self.show.is_dashboard();
        if tells {
            self.tell_of(from.as_deref(), &allowed);
        }
        let run_id = self.run_id(from.as_deref(), &rank)?;
        let checkpoints = match (self.checkpoints, &self.output) {
            (Some(policy), Some(output)) => {
                let folder = Folder::new(output.folder().join(checkpoint::FOLDER));
                let mut saver = Saver::new(policy, folder, run_id, rank.clone(), layout);
                if goes_on {
                    saver.starts_from(session.updates(), progress.cursor);
                }
                let run = self.run.as_ref().map(|run| run.text.clone());
                Some(Saves { saver, settings, run, tells })
            }
            _ => None,
        };
        let history = History::going_on(progress, session.updates(), output.as_deref());
        let mut training = TrainingLoop {
            feed: Feed::new(&data, history.progress.cursor, window, Share::of(&rank))?,
            output: output.clone(),
            log: Log::new(output.as_ref().map(|output| output.folder()), kept)?,
            history,
            saves: self.output.is_some(),
            checkpoints,
            stops: None,
            watch,
            session,
            data,
            plan,
        };
        if !leads {
            training.run(&mut Events::new(self.interrupter.0.clone(), None))?;
            return finish(training, root);
        }
        let inside = InsideBurnTrain {
            interrupter: self.interrupter.0.clone(),
            renderer: self.show.renderer(&self.interrupter.0, training.plan.total_updates),
            output: output.as_ref().map(|output| output.folder().into()),
            label: self.label.clone(),
        };
        finish(inside.run(training)?, root)
    }

    /// The checkpoint that it goes on from, if any. Every rank calls it.
    fn open(&self, rank: &Communicator, shared: &Shared) -> Result<Option<Arc<Resumed>>, TrainError> {
        match (&self.resume, &self.output) {
            (Some(resume), Some(output)) => shared.open(resume, output.folder(), rank),
            _ => Ok(None),
        }
    }

    /// Whether a checkpoint is of the output folder, which the run then goes on to write into.
    fn is_own(&self, checkpoint: &Path) -> bool {
        self.output.as_ref().is_some_and(|output| is_within(checkpoint, output.folder()))
    }

    /// What names the run in its checkpoints: once it has one, it stays the same. Ranks call it when the first has
    /// claimed the output folder, which none may write into before.
    fn run_id(&self, from: Option<&Resumed>, rank: &Communicator) -> Result<String, TrainError> {
        // As many bits as a number that ranks exchange holds exactly.
        let drawn = told(rank, (rand::random::<u64>() >> 16) as f64)?;
        Ok(match from {
            Some(from) => from.checkpoint.manifest().run.clone(),
            None => format!("{:012x}", drawn as u64),
        })
    }

    /// Where the run goes on, and with which changes.
    fn tell_of(&self, from: Option<&Resumed>, changes: &[Change]) {
        let Some(from) = from else { return };
        tell(&format!(
            "going on after update {}, from {}",
            from.state.step(),
            from.checkpoint.path().display()
        ));
        for change in changes {
            tell(&format!("changed: {change}"));
        }
    }

    fn plan<B: Batch>(&self, data: &Data<B>, window: usize, ranks: usize) -> Result<Plan, DataError> {
        let total_updates = match self.length {
            Length::Steps(updates) => updates,
            Length::Epochs(epochs) => updates_in_epochs(data, epochs, window, ranks)?,
        };
        let round_updates = match self.evaluate_every {
            Some(updates) => updates,
            None => windows_in_epoch(data, 0, window, ranks)?,
        };
        Ok(Plan {
            total_updates,
            end_epoch: match self.length {
                Length::Steps(_) => None,
                Length::Epochs(epochs) => Some(epochs),
            },
            evaluate_every: self.evaluate_every,
            rounds: total_updates.div_ceil(round_updates.max(1)) as usize,
            round_updates: round_updates.min(total_updates),
            dashboard: self.show.is_dashboard(),
            patience: self.patience,
        })
    }
}

/// Saves the model and sums up, where there is a whole one.
fn finish<M, B, T>(
    finished: TrainingLoop<M, B, T>,
    root: Option<usize>,
) -> Result<Option<Trained<M>>, TrainError>
where
    M: Objective<B>,
    B: Batch,
    T: Stage<M>,
{
    let TrainingLoop { mut session, history, output, .. } = finished;
    let bytes = session.bytes();
    let (peak, steps) = (history.peak_bytes, history.last.step);
    let ranks = RankReport::gather(session.world(), bytes, peak, &history.exchanged, steps)?;
    let averaged = session.whole_average(root)?;
    let Some(model) = session.whole(root)? else { return Ok(None) };
    if let Some(output) = &output {
        output.save_model("model.safetensors", &model)?;
        if let Some(averaged) = &averaged {
            output.save_model("ema.safetensors", averaged)?;
        }
    }
    Ok(Some(Trained {
        model,
        averaged,
        report: Report::new(&history, bytes, ranks),
        best: history.best_path,
        cursor: history.progress.cursor,
        last_step: history.last,
    }))
}
