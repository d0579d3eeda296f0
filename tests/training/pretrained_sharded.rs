//! Models of Hugging Face folders with blocks gathered one at a time: two ranks against one.

use std::collections::HashSet;

use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::FloatDType;
use firebrick::datasets::Batch;
use firebrick::strategies::{Communicator, Outcome, Setup, tie};
use firebrick::{Composition, Objective, Pass, World, Zero};
use firebrick_models::pretrained::Pretrained;
use firebrick_models::{Bart, BertMaskedLm, Gpt, Llama, ModernBertMaskedLm, T5};

use crate::support::golden_models::{Case, bits, cases, device, folder};
use crate::support::is_cpu;

const RATE: f64 = 0.1;

/// One update of a sharded model, with the same batch on each rank, equals that of the whole model.
fn shards<M, B>(name: &str, batch_of: impl Fn(&Case) -> B)
where
    M: Pretrained + Objective<B> + 'static,
    B: Batch + Clone + Sync,
{
    let folder = folder(name);
    let config = folder.config().unwrap();
    let load = || folder.load::<M>(&config, &device()).unwrap().model;
    let batch = batch_of(&cases(name)[0]);
    let items = batch.items() as f64;

    let model = load();
    let loss = model.loss(batch.clone(), &Pass::train(&device())).sum / items;
    let grads = GradientsParams::from_grads(loss.backward(), &model);
    let expected = bits(&tie(SgdConfig::new().init().step(RATE, model.clone(), grads)));
    assert_ne!(expected, bits(&model));

    let rank = |world: Communicator, model: M| {
        let device = device();
        let mut setup = Setup::new(&model, &device).among(world);
        let mut stage = Zero::stage(3).replicate_below(1).start(&mut setup).unwrap();
        let pass = setup.into_pass();
        let master = stage.init_master(model).unwrap();
        let replica = stage.publish(master.clone()).unwrap();
        let master = stage.alias_master(master, &replica);
        let (entered, pass) = pass.enter(&replica).unwrap();
        let loss = entered.loss(batch.clone(), &pass).sum / (2.0 * items);
        assert_eq!(FloatDType::from(loss.dtype()), FloatDType::F32);
        let grads = pass.gradients(loss.backward(), &entered, true).unwrap();
        let Outcome::Apply(grads) = stage.collect(&master, grads).unwrap() else { panic!("it closes") };
        drop(replica);
        let master = stage.unalias_master(master);
        let grads = grads.for_update(&master, &HashSet::new());
        let master = tie(SgdConfig::new().init().step(RATE, master, grads));
        bits(&stage.gather_full(master, None).unwrap().unwrap())
    };
    let worlds = World::threads(2).join().unwrap();
    let found = std::thread::scope(|scope| {
        // Each rank has its own leaves, because ranks that share leaves would share a graph.
        let spawn = |world| {
            let later = folder.load_later::<M>(&config, &device()).unwrap().model;
            let (rank, model) = (&rank, later);
            scope.spawn(move || rank(world, model))
        };
        let ranks: Vec<_> = worlds.into_iter().map(spawn).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
    });
    for found in found {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            let (found, expected) = (f32::from_bits(*found), f32::from_bits(*expected));
            assert!(
                (found - expected).abs() < 1e-5 * expected.abs().max(1.0),
                "{name}: {found}, not {expected}"
            );
        }
    }
}

#[test]
fn a_sharded_model_learns_what_the_whole_one_does() {
    // `ranks.rs` covers ranks on other devices.
    if !is_cpu() {
        return;
    }
    shards::<BertMaskedLm, _>("bert-masked-lm", |case| case.labeled(0));
    shards::<BertMaskedLm, _>("electra-masked-lm", |case| case.labeled(0));
    shards::<BertMaskedLm, _>("deberta-masked-lm", |case| case.labeled(0));
    shards::<ModernBertMaskedLm, _>("modernbert-masked-lm", |case| case.labeled(0));
    shards::<Gpt, _>("gpt2", Case::causal);
    shards::<Llama, _>("qwen2", Case::causal);
    shards::<Llama, _>("gemma2", Case::causal);
    shards::<Llama, _>("gemma3", Case::causal);
    shards::<T5, _>("t5", Case::seq2seq);
    shards::<T5, _>("mt5-untied", Case::seq2seq);
    shards::<Bart, _>("bart", Case::seq2seq);
    shards::<Bart, _>("bart-scaled", Case::seq2seq);
}
