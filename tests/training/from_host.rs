//! A model created on the host trains on the device that the world names.

use crate::support::*;
use burn::module::Module;
use burn::tensor::Device;
use firebrick::strategies::Composed;
use firebrick::{Composition, Data, Offload, Schedule, StepNumbers, Trainer, World, Zero};
use firebrick_models::Gpt;

/// Returns the losses of three updates on the same global batches.
fn losses(model: Gpt, ranks: usize, world: World, strategies: impl Composition<Gpt>) -> Vec<f64> {
    let (sender, steps) = std::sync::mpsc::channel();
    let data = Data::new(Rows::ragged(12)).micro_batch(4 / ranks);
    let trainer = Trainer::new().over(world).with(strategies).steps(3);
    let (optimizer, schedule) = (many::optimizer(), Schedule::constant(1e-2));
    let watch = move |step: &StepNumbers| sender.send(step.loss).unwrap();
    trainer.observe(watch).fit(model, optimizer, schedule, data).unwrap();
    steps.into_iter().collect()
}

/// The device differs from the host's if `BURN_DEVICE` names a GPU.
#[test]
fn its_losses_are_those_of_a_model_that_was_made_there() {
    let host = || gpt(0.0, &Device::flex().autodiff());
    let there = host().fork(&device());
    let expected = losses(there, 1, World::solo(), None::<Offload>);
    assert!(expected[2] < expected[0]);
    let compositions = [
        (1, None, None),
        (1, None, Some(Offload::optimizer())),
        (1, None, Some(Offload::parameters())),
        (2, Some(Zero::stage(0)), None),
        (2, Some(Zero::stage(1)), None),
        (2, Some(Zero::stage(3).replicate_below(64)), None),
        (2, Some(Zero::stage(3).replicate_below(64)), Some(Offload::optimizer())),
    ];
    for (ranks, zero, offload) in compositions {
        let name = format!("{ranks} ranks, {zero:?}, {offload:?}");
        let world = World::threads(ranks).on(vec![device()]);
        let found = losses(host(), ranks, world, Composed::new().with(zero).with(offload));
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() < 1e-4 * expected, "{name}: {found} instead of {expected}");
        }
    }
}
