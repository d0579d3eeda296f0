//! Runs within a device budget, and the error of a run that exceeds it.

use std::sync::mpsc::channel;

use crate::alone;
use crate::support::*;
use burn::optim::AdamWConfig;
use firebrick::{
    Accumulate, Amp, Data, Ema, Moment, Offload, OnDevice, OverBudget, Recompute, Report, Schedule,
    StepNumbers, TrainError, Trainer, World, Zero,
};
use firebrick_models::{Gpt, GptConfig};

const LENGTH: usize = 32;

/// Trains for three steps, a wide model on one row or a narrow one on many. Returns the report and the updates made.
fn train(trainer: Trainer<Gpt>, rows: usize) -> (Result<Report, TrainError>, usize) {
    let width = if rows == 1 { 256 } else { 64 };
    let config = GptConfig { layers: 4, heads: 4, width, dropout: 0.0, bias: true, tied: true };
    let model = config.init(VOCABULARY, LENGTH, &device().autodiff());
    let row = |i: usize| (0..=LENGTH).map(|j| ((i * 7 + j * j * 3 + j) % 10) as u32).collect();
    let data = Data::new(Rows((0..8 * rows).map(row).collect())).micro_batch(rows);
    let (sender, steps) = channel();
    let trained = trainer.steps(3).observe(move |step: &StepNumbers| sender.send(step.step).unwrap()).fit(
        model,
        AdamWConfig::new().init(),
        Schedule::constant(1e-3),
        data,
    );
    (trained.map(|trained| trained.report), steps.into_iter().count())
}

fn over(trainer: Trainer<Gpt>, rows: usize) -> OverBudget {
    match train(trainer, rows) {
        (Err(TrainError::OverBudget(over)), 0) => {
            assert!(over.found.total() > over.budget, "{over}");
            *over
        }
        (other, steps) => panic!("{other:?} after {steps} steps"),
    }
}

/// In the third step the parameters come from the other ranks while the pass computes, after it has begun to count.
#[test]
fn parameters_that_arrive_are_no_activations() {
    let _alone = alone();
    if device().memory_pool_usage().is_some() {
        return; // A pool is asked in the first two steps only.
    }
    let activations = |stage| {
        let trainer = Trainer::new().with(Zero::stage(stage)).over(World::threads(2));
        train(trainer, 1).0.unwrap().activation_bytes
    };
    let [expected, found] = [0, 1].map(activations);
    assert!(found.abs_diff(expected) < expected / 20, "{found} bytes, and {expected} where nothing arrives");
}

#[test]
fn a_run_keeps_to_its_budget_or_ends_with_what_would_help() {
    let _alone = alone();
    if device().memory_pool_usage().is_some() {
        return; // The numbers below assume the host's allocator, which has no granules.
    }
    let (report, _) = train(Trainer::new(), 64);
    let report = report.unwrap();
    let parameters = report.parameters;

    // The budget is what the trainer measured, with nothing counted twice, and the run fits.
    let kept = 12 * parameters + report.activation_bytes + 4 * parameters;
    let (result, steps) = train(Trainer::new().device_budget(kept + kept / 20), 64);
    assert_eq!((result.unwrap().steps, steps), (3, 3));

    // Too small for the parameters alone: an error before anything is computed.
    let start = over(Trainer::new().device_budget(7 * parameters), 64);
    let expected = OnDevice { gradients: 4 * parameters, master: 4 * parameters, ..OnDevice::default() };
    assert_eq!((start.moment, start.found), (Moment::Start, expected));

    // Too small for the activations of a large batch: recompute is the first remedy, and helps.
    let tight = 16 * parameters + report.activation_bytes / 2;
    let pass = over(Trainer::new().device_budget(tight), 64);
    assert_eq!(pass.moment, Moment::Pass);
    assert_eq!((pass.found.gradients, pass.found.master), (4 * parameters, 4 * parameters));
    assert!(pass.to_string().contains("of activations, the largest part"), "{pass}");
    assert!(pass.to_string().contains("1. `Recompute(every: 1)`"), "{pass}");
    let recomputing = Trainer::new().with(Recompute::every_block()).device_budget(tight);
    assert_eq!(train(recomputing, 64).0.unwrap().steps, 3);

    // The optimizer's state, with a wide model and one row: known after the first update.
    let (report, _) = train(Trainer::new(), 1);
    let parameters = report.unwrap().parameters;
    let update = over(Trainer::new().device_budget(14 * parameters), 1);
    assert_eq!(update.moment, Moment::Update);
    assert!(update.found.optimizer >= 8 * parameters && update.found.activations == 0, "{update:?}");
    assert!(update.to_string().contains("1. `Offload(optimizer)`"), "{update}");

    // A state larger than the budget trains when it is offloaded, and so does a replica.
    let offloaded = Trainer::new().with(Offload::optimizer()).device_budget(14 * parameters);
    assert_eq!(train(offloaded, 1).0.unwrap().host_bytes, 12 * parameters);
    // Less than the replica alone. With parameters on the host, a block or two of it suffice.
    let smallest = parameters * 19 / 10;
    let pass = over(Trainer::new().with(Offload::optimizer()).with(Amp::bf16()).device_budget(smallest), 1);
    assert_eq!((pass.found.replica, pass.found.master, pass.found.optimizer), (2 * parameters, 0, 0));
    assert!(pass.to_string().contains("`Offload(parameters)`"), "{pass}");
    let streamed = Trainer::new().with(Offload::parameters()).with(Amp::bf16()).device_budget(smallest);
    assert_eq!(train(streamed, 1).0.unwrap().host_bytes, 14 * parameters);

    // The parts of several strategies, including gradients of earlier micro-batches.
    let strategies = || Trainer::new().with(Amp::f16()).with(Accumulate(2)).with(Ema::new(0.9));
    let held = over(strategies().device_budget(15 * parameters), 1);
    assert_eq!(held.moment, Moment::Pass);
    let OnDevice { gradients, master, replica, averaged, optimizer, .. } = held.found;
    assert_eq!([master, replica, averaged], [4, 2, 4].map(|each| each * parameters));
    assert_eq!((gradients, optimizer), (6 * parameters, 0), "4 of the first micro-batch, 2 of the second");
}
