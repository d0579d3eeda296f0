//! Under `Amp` the update also writes the replica, so nothing casts the master again.

use std::sync::mpsc::channel;

use crate::support::*;
use burn::module::{Module, ParamId};
use burn::tensor::Tensor;
use firebrick::kernels::optim::taken;
use firebrick::optim::{AdamW, Lion, ModelOptimizer, Sgd};
use firebrick::strategies::{
    Effects, ParamMap, Publishes, Setup, Stage, Stages, StrategyError, StrategyRecipe, each_distinct_param,
    map_params, relift,
};
use firebrick::{
    Accumulate, Amp, Clip, Data, Ema, Keep, Offload, Schedule, StepNumbers, Strategy, Trainer, Zero,
};
use firebrick_models::Gpt;

const STEPS: u64 = 5;

/// The results of a run: the bits of its losses and parameters, and the number of replicas taken from updates.
struct Found {
    losses: Vec<u64>,
    parameters: Vec<u32>,
    taken: u64,
}

fn train(trainer: Trainer<Gpt>, optimizer: ModelOptimizer) -> Found {
    let data = Data::new(Rows::ragged(24)).micro_batch(2).valid(Rows::ragged(4));
    let (sender, steps) = channel();
    let trainer = trainer.steps(STEPS).evaluate_every(2);
    let before = taken();
    let watch = move |step: &StepNumbers| sender.send(step.loss.to_bits()).unwrap();
    let model = gpt(0.1, &device().autodiff());
    let trained = trainer.observe(watch).fit(model, optimizer, Schedule::constant(1e-2), data).unwrap();
    let parameters = parameters(&trained.model).into_iter().map(f32::to_bits).collect();
    Found { losses: steps.into_iter().collect(), parameters, taken: taken() - before }
}

/// Returns the number of distinct parameters of the model.
fn distinct() -> u64 {
    let mut count = 0;
    each_distinct_param(&gpt(0.1, &device().autodiff()), |_| count += 1);
    count
}

/// The precisions in which the device computes the replica.
fn halves() -> Vec<Amp> {
    if has_bf16() { vec![Amp::bf16(), Amp::f16()] } else { vec![Amp::f16()] }
}

/// Casts copies of the master, which an update has not cast.
fn cast_again(amp: Amp, optimizer: ModelOptimizer) -> Found {
    train(Trainer::new().with(amp).with(Copies), optimizer)
}

/// Publishes a copy of the master.
#[derive(Clone, Debug)]
struct Copies;

impl StrategyRecipe for Copies {
    fn effects(&self) -> Effects {
        Effects::none("Copies")
    }
}

impl<M: Module> Strategy<M> for Copies {
    fn stages(&self, _: &mut Setup<M>) -> Result<Stages<M>, StrategyError> {
        Ok(Stages::of(Self))
    }
}

impl<M: Module> Stage<M> for Copies {
    fn name(&self) -> &'static str {
        "Copies"
    }

    fn publishes(&self) -> Publishes {
        Publishes::Together
    }

    fn publish(&mut self, master: M) -> Result<M, StrategyError> {
        struct Copy;
        impl ParamMap for Copy {
            fn map<const D: usize>(&mut self, _: ParamId, value: Tensor<D>) -> Tensor<D> {
                relift(value.clone().inner() * 1.0, &value)
            }
        }
        Ok(map_params(master, &mut Copy))
    }
}

#[test]
fn each_parameter_is_cast_once_at_the_start_and_never_again() {
    for optimizer in [
        AdamW::new().weight_decay(0.1).init().unwrap(),
        Lion::new().init().unwrap(),
        Sgd::new().momentum(0.9).init().unwrap(),
    ] {
        for amp in halves() {
            let expected = cast_again(amp.clone(), optimizer.clone());
            assert_eq!(expected.taken, 0);
            // On a GPU, f16 may overflow at the first loss scales, and such a step is seen too.
            assert!(expected.losses.len() as u64 == STEPS || !is_cpu());
            let offload = Trainer::new().with(Offload::optimizer()).with(amp.clone());
            for (name, found) in [
                ("alone", train(Trainer::new().with(amp.clone()), optimizer.clone())),
                ("offloaded", train(offload, optimizer.clone())),
                ("sharded", train(Trainer::new().with(Zero::stage(3)).with(amp.clone()), optimizer.clone())),
            ] {
                // An update that a GPU refuses writes the replica too, of the parameters as they were.
                let steps = found.losses.len() as u64;
                let (taken, rest) = (found.taken / distinct(), found.taken % distinct());
                assert!(rest == 0 && (STEPS..=steps).contains(&taken), "{name}, {amp:?}: {taken} {rest}");
                // Elsewhere the host and the device round an update in their own ways.
                if is_cpu() {
                    assert_eq!(found.losses, expected.losses, "{name}, {amp:?}");
                    assert_eq!(found.parameters, expected.parameters, "{name}, {amp:?}");
                }
            }
        }
    }
}

#[test]
fn what_nobody_takes_is_cast_as_ever() {
    if !has_bf16() {
        return;
    }
    let optimizer = || AdamW::new().init().unwrap();
    // No replica is taken with another optimizer, without a smaller dtype, or without an f32 master.
    assert_eq!(train(Trainer::new().with(Amp::bf16()), many::optimizer()).taken, 0);
    assert_eq!(train(Trainer::new().with(Clip::norm(1.0)), optimizer()).taken, 0);
    assert_eq!(train(Trainer::new().with(Amp::pure_bf16()), optimizer()).taken, 0);
    // The average is published separately, and parameters kept in f32 as they are.
    let with = |amp: Amp| Trainer::new().with(amp).with(Accumulate(2)).with(Ema::new(0.9));
    let found = train(with(Amp::bf16().keep_f32(Keep::norms())), optimizer());
    assert!(found.taken > 0 && found.taken < STEPS * distinct(), "{}", found.taken);
    assert_eq!(train(with(Amp::bf16()), optimizer()).taken, STEPS * distinct());
}
