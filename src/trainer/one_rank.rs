//! Which ranks a run has, and what each of them does from the start of its strategies to its report.

use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{Device, StreamId};
use firebrick_datasets::{Batch, DataError};
use firebrick_strategies::optim::ModelOptimizer;
use firebrick_strategies::{Adaptation, Composition, StageBalance};
use firebrick_world::{Communicator, World};

use super::reference::reference_of;
use super::{Trained, Trainer, TrainingSettings};
use crate::beside::Beside;
use crate::checkpoint::{self, RecordedSchedule, Settings};
use crate::device::kernels;
use crate::engine::block_times::block_times;
use crate::engine::dry_run::dry_run;
use crate::engine::feed::{Feed, steps_in_epoch, updates_in_epochs};
use crate::engine::session::{PreparedRun, Whole};
use crate::engine::training_loop::{Plan, TrainingLoop};
#[cfg(feature = "tui")]
use crate::observe::dashboard::Dashboard;
use crate::observe::lines::{FirstStep, Lines};
use crate::observe::observer::Observer;
use crate::observe::observers::SharedObservers;
use crate::observe::rank_report::{Exchanged, RankReport};
use crate::observe::readings::Meters;
use crate::observe::report::Report;
use crate::observe::terminal::Show;
use crate::observe::timeline::recorder::Recorder;
use crate::observe::utilization::Devices;
use crate::output::Output;
use crate::output::metric_files::MetricFiles;
use crate::output::timeline_files::TimelineFiles;
use crate::score::{BestBy, EvaluationSums, require_names};
use crate::{Data, LrSchedule, Objective, Schedule, Score, TrainError};

impl<M: 'static> Trainer<M> {
    /// Determines the run's ranks.
    pub(super) fn world(&self) -> Result<World, TrainError> {
        match (&self.world, self.strategies.ranks()) {
            (Some(trainer), Some(strategies)) if trainer != strategies => Err(TrainError::TwoWorlds {
                trainer: format!("{trainer:?}"),
                strategies: format!("{strategies:?}"),
            }),
            (Some(world), _) | (None, Some(world)) => Ok(world.clone()),
            (None, None) => Ok(World::solo()),
        }
    }

    /// Runs one rank. Returns the model on the `root`, or on every rank if there is no root.
    #[allow(clippy::too_many_arguments, reason = "what `fit` is given, for one rank")]
    pub(super) fn train<B>(
        self,
        rank: Communicator,
        (model, device): (M, Option<Device>),
        optimizer: ModelOptimizer,
        schedule: Arc<dyn LrSchedule>,
        data: Data<B>,
        root: Option<usize>,
        shared: &checkpoint::Shared,
    ) -> Result<Option<Trained<M>>, TrainError>
    where
        M: Objective<B>,
        B: Batch,
    {
        // Report errors before touching the folder and before ranks wait for one another.
        let scores = self.scores.after(model.scores(&[]), &EvaluationSums::default());
        require_names(&scores)?;
        let best_by = BestBy::of(self.settings.best_by.as_ref(), &scores)?;
        let reference = reference_of(&data)?;
        let unadapted = self.unadapted(reference, (&model, &device), &optimizer);
        let adaptation = Adaptation::seeded(self.settings.seed).with_fresh(self.fresh.clone());
        let adaptation = adaptation.starting_from(self.start.clone()).with_tensor_plan(model.tensor_plan());
        let adaptation = match self.balances_by_time() {
            true => adaptation.with_block_costs(block_times(&model, device.as_ref(), &data, &rank)?),
            false => adaptation,
        };
        let prepared =
            PreparedRun::new(&self.strategies, model, device, &optimizer, rank.clone(), adaptation)?;
        prepared.require_sums(&data)?;
        let per_step = prepared.micro_batches();
        let share = prepared.share();
        let plan = self.plan(&data, per_step, share.ranks, best_by.clone())?;
        let total = plan.total_updates;
        schedule.check(total)?;
        let settings = Settings {
            seed: self.settings.seed,
            label_smoothing: self.settings.label_smoothing,
            schedule: RecordedSchedule::Known(schedule.settings().unwrap_or(Schedule::constant(0.0))),
            rates_by_function: schedule.settings().is_none(),
            total_updates: total,
            global_batch: data.micro_batch.times(per_step).times(share.ranks).into(),
            train_samples: data.train.samples(0),
            data: data.fingerprints,
        };
        let mut start = self.start(&rank, shared, &settings)?;
        let session =
            prepared.opening_disk().start(optimizer, schedule.clone(), self.settings.seed, total)?;
        let session = session.smoothing_labels(self.settings.label_smoothing);
        let mut session =
            session.within(self.settings.device_budget.map(|budget| budget.0), self.optimizer_states)?;
        let layout = session.layout().clone();
        let compiles = kernels::are_compiled_for(session.device());
        let first_step = (compiles && self.tells(&rank)).then(FirstStep::awaited);
        dry_run(&mut session, &data, per_step)?;
        if let Some(from) = &start.from {
            from.require_place(|epoch| data.train.samples(epoch))?;
        }
        let answers = match reference {
            None => None,
            Some(reference) => {
                let span = (per_step, total);
                Some(self.ask(reference, &session, unadapted, &schedule, &start, &data, span)?)
            }
        };
        if let Some(from) = &start.from {
            session.resume(&layout, from, &self.interrupter.0)?;
        }
        self.claim(&mut start, &rank)?;
        let data = match answers {
            None => data,
            Some(answers) => {
                if let Some(output) = start.output.as_ref().filter(|_| rank.rank() == 0) {
                    answers.save(&output.current())?;
                }
                answers.give(data)
            }
        };
        let checkpoints = self.saves(&start, settings, &session, layout, best_by);
        // Those of the program see the run once, on the first rank.
        let program = if rank.rank() == 0 { self.observers.clone() } else { SharedObservers::default() };
        let (progress, best, observers) = start.history(session.updates(), &rank, program)?;
        let devices = Devices::of(&rank, session.device(), self.utilization)?;
        let mut training = TrainingLoop {
            feed: Feed::new(&data, progress.cursor, per_step, share)?,
            output: start.output.clone(),
            observers,
            interrupter: self.interrupter.0.clone(),
            scores: self.scores.clone(),
            best,
            progress,
            exchanged: Exchanged::default(),
            saves: self.output.is_some(),
            checkpoints,
            devices,
            recorder: Recorder::of(self.settings.timeline.clone()),
            stops: None,
            saving: true,
            has_updated: false,
            interrupted: false,
            stopped: None,
            failed_writes: Vec::new(),
            session,
            data,
            plan,
        };
        if rank.rank() == 0 {
            self.follow(&mut training, &scores);
        }
        if let Some(first_step) = first_step {
            training.observers.add(first_step);
        }
        let result = training.run();
        training.observers.close();
        result?;
        finish(training, root)
    }

    /// Returns whether the stages of a pipeline are to take about the same time.
    fn balances_by_time(&self) -> bool {
        let strategies = self.strategies.strategies();
        let mut pipelines = strategies.iter().filter_map(|strategy| strategy.effects().pipeline);
        pipelines.any(|pipeline| pipeline.balance == StageBalance::MeasuredTime)
    }

    /// Adds what the run shows, and its metric files.
    fn follow<B>(&self, training: &mut TrainingLoop<M, B>, scores: &[Score])
    where
        M: Objective<B>,
        B: Batch,
    {
        let scores = if training.data.valid.is_some() { scores } else { &[] };
        let several_ranks = training.session.world().size() > 1;
        let steps = Meters::of_steps(training.session.scales_loss(), several_ranks, &training.devices);
        let meters = (steps, Meters::of_evaluations(scores));
        let (begun, tells) = (training.begun(), self.tells(training.session.world()));
        let TrainingLoop { observers, output, plan, .. } = training;
        if let Some(output) = output {
            observers.add(MetricFiles::new(output.clone(), meters.clone(), begun, tells));
            if !self.settings.timeline.is_empty() {
                observers.add(TimelineFiles::new(output.clone(), tells));
            }
        }
        match self.show {
            Show::Nothing => {}
            #[cfg(feature = "tui")]
            show if show.is_dashboard() => {
                let rounds = plan.total_updates.div_ceil(plan.round_updates.max(1)) as usize;
                observers.add(Dashboard::open(&self.interrupter.0, &self.label, rounds, meters));
            }
            show => {
                let each_step = show == Show::EachStep;
                observers.add(Lines::new(&self.label, plan.total_updates, scores, each_step));
            }
        }
    }

    fn plan<B: Batch>(
        &self,
        data: &Data<B>,
        per_step: usize,
        ranks: usize,
        best_by: BestBy,
    ) -> Result<Plan, DataError> {
        let TrainingSettings { steps, epochs, .. } = self.settings;
        let (total_updates, end_epoch) = match (steps, epochs.unwrap_or(1)) {
            (Some(updates), _) => (updates, None),
            (None, epochs) => (updates_in_epochs(data, epochs, per_step, ranks)?, Some(epochs)),
        };
        let round_updates = match self.settings.evaluate_every {
            Some(updates) => updates,
            None => steps_in_epoch(data, 0, per_step, ranks)?,
        };
        Ok(Plan {
            total_updates,
            end_epoch,
            evaluate_every: self.settings.evaluate_every,
            round_updates: round_updates.min(total_updates),
            dashboard: self.show.is_dashboard(),
            best_by,
            patience: self.settings.early_stopping,
        })
    }
}

/// Writes the whole model, its average and its adapters.
fn save<M: Module>(output: &Output, (model, averaged, adapters): &Whole<M>) -> Result<(), TrainError> {
    output.save_model("model.safetensors", model)?;
    if let Some(averaged) = averaged {
        output.save_model("ema.safetensors", averaged)?;
    }
    match adapters {
        Some(adapters) => adapters.save(output.folder().join("adapter")),
        None => Ok(()),
    }
}

/// Saves the model and makes the report, if this rank has the whole model.
fn finish<M, B>(finished: TrainingLoop<M, B>, root: Option<usize>) -> Result<Option<Trained<M>>, TrainError>
where
    M: Objective<B> + 'static,
    B: Batch,
{
    let TrainingLoop { mut session, output, mut observers, progress, best, mut exchanged, .. } = finished;
    let TrainingLoop { interrupted, stopped, failed_writes, devices, .. } = finished;
    let averaged = session.whole_average(root)?;
    let whole = session.adapted(root)?.map(|adapted| {
        let adapters = session.adapters(&adapted);
        (session.given_back(adapted), averaged, adapters)
    });
    // The other ranks do not wait for the files: they report their own results meanwhile and end.
    let writing = match (&whole, output) {
        (Some(whole), Some(output)) => {
            let (whole, stream) = (session.to_write(whole), StreamId::current());
            Some(Beside::start(move || stream.executes(|| save(&output, &whole))))
        }
        _ => None,
    };
    let bytes = session.bytes();
    let tally = std::mem::take(&mut observers.tally);
    exchanged.add(&session.exchanged_since());
    let ranks = RankReport::gather(session.world(), bytes, tally.peak_bytes, &exchanged, tally.last.step);
    writing.map_or(Ok(()), Beside::wait)?;
    let Some((model, averaged, adapters)) = whole else { return Ok(None) };
    let report = devices.of_run(tally.report(&progress, bytes, ranks?));
    let report = Report { interrupted, stopped, failed_writes, ..report };
    observers.ended(&report);
    Ok(Some(Trained {
        model: session.returned(model),
        averaged: averaged.map(|averaged| session.returned(averaged)),
        adapters,
        report,
        best: best.found().map(|(path, _)| path.into()),
        cursor: progress.cursor,
        last_step: tally.last,
        has_gone_on: tally.has_gone_on,
    }))
}
