//! The optimizer changes the master in place, whatever strategies are composed.

use std::sync::{Arc, Mutex};

use crate::support::*;
use burn::module::Module;
use firebrick::datasets::TokenBatch;
use firebrick::kernels::optim::copies;
use firebrick::strategies::optim::{AdamW, Lion, ModelOptimizer, Sgd};
use firebrick::{Accumulate, Amp, Clip, Data, Loss, Objective, Pass, Recompute, Schedule, Trainer};
use firebrick_models::Gpt;

/// Returns the copies that each step of a run made.
fn copied(trainer: Trainer<Gpt>, optimizer: ModelOptimizer) -> Vec<u64> {
    copied_of(gpt(0.1, &device().autodiff()), trainer, optimizer)
}

fn copied_of<M: Objective<TokenBatch> + 'static>(
    model: M,
    trainer: Trainer<M>,
    optimizer: ModelOptimizer,
) -> Vec<u64> {
    let data = Data::new(Rows::ragged(24)).micro_batch(2).valid(Rows::ragged(4));
    let (seen, before) = (Arc::new(Mutex::new(Vec::new())), copies());
    let steps = seen.clone();
    let trainer = trainer.steps(6).evaluate_every(2);
    let watch = move |_: &firebrick::StepNumbers| steps.lock().unwrap().push(copies());
    trainer.observe(watch).fit(model, optimizer, Schedule::constant(1e-2), data).unwrap();
    let seen = seen.lock().unwrap();
    let earlier = [before].into_iter().chain(seen.iter().copied());
    seen.iter().zip(earlier).map(|(now, earlier)| now - earlier).collect()
}

#[test]
fn no_step_of_the_trainer_copies_a_parameter_or_a_moment() {
    let none = [0; 6];
    let optimizer = || AdamW::new().weight_decay(0.1).init().unwrap();
    assert_eq!(copied(Trainer::new(), optimizer()), none, "plain");
    assert_eq!(copied(Trainer::new(), Lion::new().init().unwrap()), none, "Lion");
    assert_eq!(copied(Trainer::new(), Sgd::new().momentum(0.9).init().unwrap()), none, "Sgd");
    let accumulated = Trainer::new().with(Accumulate(2)).with(Clip::norm(1.0));
    assert_eq!(copied(accumulated, optimizer()), none, "accumulated");
    let recomputed = Trainer::new().with(Recompute::every_block());
    assert_eq!(copied(recomputed, optimizer()), none, "recomputed");
    if has_bf16() {
        for amp in [Amp::bf16(), Amp::pure_bf16()] {
            let name = format!("{amp:?}");
            let mixed = Trainer::new().with(amp).with(Accumulate(2)).with(Clip::norm(1.0));
            assert_eq!(copied(mixed, optimizer()), none, "{name}");
        }
    }
}

/// Two fields that share one parameter.
#[derive(Module, Debug)]
struct Twins {
    first: Bigram,
    second: Bigram,
}

impl Objective<TokenBatch> for Twins {
    fn loss(&self, batch: TokenBatch, pass: &Pass) -> Loss {
        let [first, second] = [&self.first, &self.second].map(|twin| twin.loss(batch.clone(), pass));
        Loss { sum: first.sum + second.sum, items: first.items }
    }
}

#[test]
fn a_tied_parameter_is_not_copied_either() {
    let first = Bigram::new(&device().autodiff());
    let twins = Twins { second: first.clone(), first };
    assert_eq!(copied_of(twins.clone(), Trainer::new(), AdamW::new().init().unwrap())[1..], [0; 5]);
    let mixed = Trainer::new().with(Amp::f16());
    assert_eq!(copied_of(twins, mixed, AdamW::new().init().unwrap())[1..], [0; 5]);
}

/// A model held during an update is copied, which shows that the test above can detect copies.
#[test]
fn a_model_that_is_held_is_copied_once() {
    if !is_cpu() {
        return;
    }
    let data = Data::new(Rows::ragged(24)).micro_batch(2);
    let held = gpt(0.1, &device().autodiff());
    let (before, as_it_was) = (copies(), parameters(&held));
    let trainer = Trainer::new().steps(3);
    let trained =
        trainer.fit(held.clone(), AdamW::new().init().unwrap(), Schedule::constant(1e-2), data).unwrap();
    assert!(copies() > before);
    assert_eq!(parameters(&held), as_it_was);
    assert_ne!(parameters(&trained.model), as_it_was);
}
