//! Measures the step time and memory of a run, alone or compared with a plain Burn loop.

use std::sync::mpsc::channel;
use std::time::Instant;

use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::Device;
use burn::train::Interrupter;
use firebrick_datasets::{Cursor, counted};
use firebrick_kernels::Draws;
use serde::Serialize;

use crate::run::Parts;
use crate::{DataRun, Run, RunError};
use firebrick::engine::feed::{Feed, MicroBatch, Share};
use firebrick::memory::{Usage, reset_peak};
use firebrick::observe::report::median;
use firebrick::{Objective, Pass, Report, Schedule, StepNumbers, TrainError};
use firebrick_models::pretrained::Folder;

/// The length of a benchmark.
#[derive(Clone, Copy, Debug)]
pub struct Bench {
    /// Timed steps in each round.
    pub steps: u64,
    /// Untimed steps before them.
    pub warmup: u64,
    /// Rounds, each with fresh weights. With `raw`, both loops take turns.
    pub rounds: u64,
    /// Whether to run the same model, batch and optimizer in a plain Burn loop too.
    pub raw: bool,
}

/// The results of a benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct BenchReport {
    /// The report of the trainer's last round. The step time, the tokens per second and the peaks cover all rounds;
    /// `first_step_seconds` is the time of the first round.
    #[serde(flatten)]
    pub trainer: Report,
    /// The trainer compared with the plain loop.
    #[serde(flatten)]
    pub raw: Option<RawReport>,
    /// This run compared with the other.
    #[serde(flatten)]
    pub beside: Option<BesideReport>,
}

/// The plain Burn loop, and the trainer compared with it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RawReport {
    /// Median seconds of the plain loop's steps.
    pub raw_step_seconds_median: f64,
    /// Peak bytes in use in the plain loop.
    pub raw_peak_bytes: usize,
    /// The trainer's median divided by the plain loop's.
    pub step_ratio_to_raw: f64,
    /// The trainer's peak divided by the plain loop's.
    pub peak_ratio_to_raw: f64,
}

/// Another run of the trainer with other settings, and the benchmarked run compared with it.
///
/// Activations are [`Report::activation_bytes`], without the gradients that recomputed segments leave. Without
/// recompute, activations peak at the start of the backward pass, when there are no gradients yet, unless the model is
/// large and the batch tiny.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BesideReport {
    /// Median seconds of the other run's steps.
    pub beside_step_seconds_median: f64,
    /// Peak bytes that its forward and backward passes used on top of the bytes before them.
    pub beside_activation_bytes: usize,
    /// Peak bytes in use in the other run.
    pub beside_peak_bytes: usize,
    /// This run's median divided by the other's.
    pub step_ratio_to_beside: f64,
    /// This run's activations divided by the other's.
    pub activation_ratio_to_beside: f64,
    /// This run's peak divided by the other's.
    pub peak_ratio_to_beside: f64,
}

/// Seconds of the timed steps, and the peak bytes.
#[derive(Default)]
struct BenchResult {
    seconds: Vec<f64>,
    peak: usize,
    activations: usize,
}

impl BenchResult {
    fn add(&mut self, seconds: Vec<f64>, peak: usize, activations: usize) {
        self.seconds.extend(seconds);
        self.peak = self.peak.max(peak);
        self.activations = self.activations.max(activations);
    }

    /// Runs one round of the trainer.
    fn round(&mut self, bench: &Bench, run: &Run, parts: &Parts) -> Result<Report, RunError> {
        reset_peak();
        let (report, seconds) = bench.trainer_round(run, parts)?;
        self.add(seconds, report.peak_bytes, report.activation_bytes);
        Ok(report)
    }
}

impl Bench {
    /// Trains without evaluation and files, and measures. With a second run, the two take turns; it must have the same
    /// model and task, and may have another shape. `say` receives messages about what is read and which round runs.
    ///
    /// # Errors
    ///
    /// The errors of [`Run::launch`].
    pub fn run(&self, run: &Run, beside: Option<&Run>, say: impl Fn(&str)) -> Result<BenchReport, RunError> {
        let (model, folder) = run.named_model()?;
        let prepare = |run: &Run, folder| {
            let mut parts = run.prepare(model, folder, &Interrupter::new(), &say)?;
            parts.data.valid = None;
            Ok::<_, RunError>(parts)
        };
        let reopened = folder.as_ref().map(|folder| Folder::open(folder.path())).transpose()?;
        let parts = prepare(run, folder)?;
        let beside = beside.map(|run| Ok::<_, RunError>((run, prepare(run, reopened)?))).transpose()?;
        let [mut trainer, mut raw, mut other] = [(); 3].map(|()| BenchResult::default());
        let mut report = Report::default();
        let mut first_step = None;
        for round in 1..=self.rounds {
            say(&format!(
                "round {round} of {}: {} of the run",
                self.rounds,
                counted(self.warmup + self.steps, "step")
            ));
            report = trainer.round(self, run, &parts)?;
            first_step.get_or_insert(report.first_step_seconds);
            if let Some((run, parts)) = &beside {
                say("the same for the other run");
                other.round(self, run, parts)?;
            }
            if self.raw {
                say("the same in a plain Burn loop");
                reset_peak();
                let (seconds, peak) = self.raw_round(run, &parts)?;
                raw.add(seconds, peak, 0);
            }
        }
        // Later rounds start long after the process and would give a wrong start-up time.
        report.first_step_seconds = first_step.unwrap_or_default();
        report.step_seconds_median = median(&trainer.seconds);
        report.peak_bytes = trainer.peak;
        report.activation_bytes = trainer.activations;
        let raw = self.raw.then(|| RawReport::new(&trainer, &raw));
        let beside = beside.map(|_| BesideReport::new(&trainer, &other));
        Ok(BenchReport { trainer: report, raw, beside })
    }

    fn trainer_round(&self, run: &Run, parts: &Parts) -> Result<(Report, Vec<f64>), RunError> {
        let (model, optimizer) = run.fresh(parts, |_| {})?;
        let (sender, times) = channel();
        let trainer = run.trainer(parts).utilization(run.utilization(parts)?).steps(self.warmup + self.steps);
        let trained = trainer
            .observe(move |step: &StepNumbers| {
                let _ = sender.send(step.seconds);
            })
            .fit(model, optimizer, self.schedule(run), parts.data.clone())?;
        let seconds = times.into_iter().skip(self.warmup as usize).collect();
        Ok((trained.report, seconds))
    }

    /// Runs the loop that a Burn user writes by hand, on the same global batches.
    fn raw_round(&self, run: &Run, parts: &Parts) -> Result<(Vec<f64>, usize), RunError> {
        let (model, mut optimizer) = run.fresh(parts, |_| {})?;
        let mut model = model.fork(&parts.device);
        let per_step = DataRun::from(run).micro_batches();
        let mut feed = Feed::new(&parts.data, Cursor::default(), per_step, Share::WHOLE)?;
        let (schedule, total) = (self.schedule(run), self.warmup + self.steps);
        let (mut seconds, mut peak) = (Vec::new(), 0);
        for step in 0..total {
            let started = Instant::now();
            let share = feed.next_batch()?;
            let items: usize = share.micro_batches.iter().map(MicroBatch::items).sum();
            let mut sum = GradientsAccumulator::new();
            for MicroBatch { batch, positions } in share.micro_batches {
                let Some(batch) = batch else { continue };
                let first = positions.start as u64;
                let draws = Draws { seed: run.seed, epoch: share.epoch, first };
                let pass = Pass::train(&parts.device).drawing(draws);
                let loss = model.loss(batch, &pass).sum / items as f64;
                peak = peak.max(peak_of(&parts.device));
                let grads = GradientsParams::from_grads(loss.backward(), &model);
                loss.try_into_scalar::<f64>().map_err(TrainError::from)?;
                sum.accumulate(&model, grads);
            }
            model = optimizer.step(schedule.rate(step, total), model, sum.grads());
            peak = peak.max(peak_of(&parts.device));
            seconds.push(started.elapsed().as_secs_f64());
        }
        Ok((seconds.split_off(self.warmup as usize), peak))
    }

    /// Returns the run's schedule without its warmup, which may be longer than a benchmark. If its other phases are
    /// longer too, returns a constant schedule at its highest rate.
    fn schedule(&self, run: &Run) -> Schedule {
        let schedule = run.schedule.clone().warmup(0);
        match schedule.check(Some(self.warmup + self.steps)) {
            Ok(()) => schedule,
            Err(_) => Schedule::constant(schedule.peak()),
        }
    }
}

impl RawReport {
    fn new(trainer: &BenchResult, raw: &BenchResult) -> Self {
        let (step, raw_step) = (median(&trainer.seconds), median(&raw.seconds));
        Self {
            raw_step_seconds_median: raw_step,
            raw_peak_bytes: raw.peak,
            step_ratio_to_raw: step / raw_step.max(f64::MIN_POSITIVE),
            peak_ratio_to_raw: ratio(trainer.peak, raw.peak),
        }
    }
}

impl BesideReport {
    fn new(trainer: &BenchResult, other: &BenchResult) -> Self {
        let (step, other_step) = (median(&trainer.seconds), median(&other.seconds));
        Self {
            beside_step_seconds_median: other_step,
            beside_activation_bytes: other.activations,
            beside_peak_bytes: other.peak,
            step_ratio_to_beside: step / other_step.max(f64::MIN_POSITIVE),
            activation_ratio_to_beside: ratio(trainer.activations, other.activations),
            peak_ratio_to_beside: ratio(trainer.peak, other.peak),
        }
    }
}

fn ratio(bytes: usize, of: usize) -> f64 {
    // If nothing counts bytes, there is no ratio.
    if of == 0 { f64::NAN } else { bytes as f64 / of as f64 }
}

fn peak_of(device: &Device) -> usize {
    Usage::of(device).unwrap_or_default().peak
}
