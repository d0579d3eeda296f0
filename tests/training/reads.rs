//! How often a step waits for the device's results, and looks at its memory.

use std::sync::mpsc::{Sender, channel};

use crate::support::*;
use firebrick::memory::looks;
use firebrick::strategies::optim::AdamW;
use firebrick::world::reads;
use firebrick::{
    Accumulate, Amp, Checkpoints, Clip, Data, Ema, EvaluationNumbers, LossScale, Observer, Recompute,
    Schedule, SkipOutliers, StepNumbers, Trainer,
};
use firebrick_models::Gpt;

const STEPS: u64 = 8;

/// Returns how many reads there were when the numbers of each step were known.
fn reads_at_steps(trainer: Trainer<Gpt>) -> Vec<u64> {
    at_steps(trainer, reads)
}

/// Returns a count when the numbers of each step were known.
fn at_steps(trainer: Trainer<Gpt>, count: fn() -> u64) -> Vec<u64> {
    let (sender, seen) = channel();
    let watch = move |_: &StepNumbers| sender.send(count()).unwrap();
    let data = Data::new(Rows::ragged(64)).micro_batch(2);
    let model = gpt(0.1, &device().autodiff());
    let adamw = AdamW::new().init().unwrap();
    trainer.steps(STEPS).observe(watch).fit(model, adamw, Schedule::constant(1e-3), data).unwrap();
    seen.into_iter().collect()
}

/// The loss of a step is read with its norm: before the update, or, where the device decides about it, when the next
/// one is due.
fn once_a_step(trainer: Trainer<Gpt>, what: &str) {
    a_step_reads(1, trainer, what);
}

fn a_step_reads(expected: u64, trainer: Trainer<Gpt>, what: &str) {
    let seen = reads_at_steps(trainer);
    let between: Vec<_> = seen.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // The second step's numbers are known before the third's are read, the last step's at the end.
    assert_eq!(between.len() as u64, STEPS - 1, "{what}");
    assert!(between[1..between.len() - 1].iter().all(|reads| *reads == expected), "{what}: {between:?}");
}

#[test]
fn a_step_waits_for_its_device_once() {
    once_a_step(Trainer::new(), "plain");
    once_a_step(Trainer::new().with(Clip::norm(1.0)), "clipped");
    once_a_step(Trainer::new().with(Accumulate(4)), "accumulated");
    // It reads the norm before the step is settled, and the loss is read by itself.
    a_step_reads(2, Trainer::new().with(SkipOutliers::new(6.0)), "outliers");
    once_a_step(Trainer::new().with(Ema::new(0.9)), "averaged");
    once_a_step(Trainer::new().with(Amp::f16().scaled_by(LossScale::dynamic(1024.0))), "f16");
    if has_bf16() {
        once_a_step(Trainer::new().with(Amp::bf16()).with(Accumulate(2)).with(Clip::norm(1.0)), "bf16");
    }
}

/// Notes the reads when an evaluation has ended.
struct Evaluations(Sender<u64>);

impl Observer for Evaluations {
    fn evaluated(&mut self, _: &EvaluationNumbers) {
        self.0.send(reads()).unwrap();
    }
}

/// The parameters are read together, however many they are, and so is the optimizer's state.
#[test]
fn a_checkpoint_waits_for_all_parameters_at_once() {
    let run = |every: u64| {
        let folder = tempfile::tempdir().unwrap();
        let before = reads();
        reads_at_steps(
            Trainer::new().output(folder.path().join("run")).checkpoints(Checkpoints::every(every)),
        );
        reads() - before
    };
    // Three saves more: parameters and moments from the device, and the copy of the parameters on the host. Besides, the
    // loss of the last step before each is read for it.
    let more = run(2) - run(STEPS);
    assert!(more <= 3 * 4, "{more}");
}

#[test]
fn a_checkpoint_at_the_end_of_a_run_waits_no_longer() {
    let run = |saves: bool| {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = saves.then(|| Checkpoints::every(1000));
        let trainer = Trainer::new().output(folder.path().join("run"));
        let before = reads();
        reads_at_steps(checkpoints.into_iter().fold(trainer, |trainer, every| trainer.checkpoints(every)));
        reads() - before
    };
    // Parameters, moments, and the copy of the parameters on the host, all for the checkpoint.
    let more = run(true) - run(false);
    assert!(more <= 3, "{more}");
}

/// Losses of up to 16 batches are read together, where a read waits.
#[test]
fn an_evaluation_waits_once_for_many_batches() {
    let (sender, seen) = channel();
    let data = Data::new(Rows::ragged(8)).micro_batch(2).valid(Rows::ragged(40));
    let model = gpt(0.0, &device().autodiff());
    let before = reads();
    let trainer = Trainer::new().steps(2).evaluate_every(1).observe(Evaluations(sender));
    trainer.fit(model, adamw(), Schedule::constant(1e-3), data).unwrap();
    let seen: Vec<_> = seen.into_iter().collect();
    let batches = 20u64;
    let reads = if is_cpu() { batches } else { batches.div_ceil(16) };
    assert_eq!(seen.len(), 2);
    assert!(seen[0] - before <= reads + 3, "{before} {seen:?}");
}

/// A look holds up the queue of operations. The first steps' looks measure the parts of a step.
#[test]
fn a_step_looks_at_the_memory_of_its_device_once() {
    fn once(trainer: Trainer<Gpt>, what: &str) {
        let seen = at_steps(trainer, looks);
        // The numbers of a step are known when the next one has been submitted.
        let between: Vec<_> = seen.windows(2).skip(2).map(|pair| pair[1] - pair[0]).collect();
        let expected = u64::from(!is_cpu());
        assert!(between[..between.len() - 1].iter().all(|looks| *looks == expected), "{what}: {seen:?}");
    }
    once(Trainer::new(), "plain");
    once(Trainer::new().with(Accumulate(4)), "accumulated");
    once(Trainer::new().with(Recompute::every(1)).with(Accumulate(2)), "recomputed");
}
