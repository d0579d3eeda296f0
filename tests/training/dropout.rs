//! Training with dropout: the mask depends on the seed and the samples, not on the batches.

use std::sync::Arc;

use crate::support::*;
use burn::optim::SgdConfig;
use firebrick::datasets::collators::{CausalLm, CausalSample, Packing};
use firebrick::datasets::{Batcher, Batches, Encoder, InMemory, Packs, Padding, Side, TokenBatch, Tokenizer};
use firebrick::strategies::map_params;
use firebrick::{Accumulate, Data, Schedule, Trained, Trainer};
use firebrick_models::{Gpt, GptConfig};

/// Reads up to 9 tokens of a sample, with fixed weights.
fn gpt(dropout: f64) -> Gpt {
    let config = GptConfig { layers: 2, heads: 2, width: 16, dropout, bias: true, tied: false };
    map_params(config.init(VOCABULARY, 9, &device().autodiff()), &mut Waves::default())
}

fn train(
    trainer: Trainer<Gpt>,
    dropout: f64,
    data: impl Batches<Batch = TokenBatch>,
    micro: usize,
) -> Trained<Gpt> {
    let data = Data::new(data).micro_batch(micro);
    // With plain gradient descent, a rounding error in the gradients is as large in the weights.
    trainer.fit(gpt(dropout), SgdConfig::new().init(), Schedule::constant(0.02), data).unwrap()
}

/// Trains five epochs of 16 rows, in whole batches.
fn whole(dropout: f64, seed: u64, data: impl Batches<Batch = TokenBatch>) -> Vec<f32> {
    parameters(&train(Trainer::new().steps(5).seed(seed), dropout, data, 16).model)
}

fn ragged() -> Rows {
    Rows::ragged(16)
}

fn causal() -> CausalLm {
    let tokenizer = Tokenizer::characters("abcdefghijk").unwrap();
    CausalLm::new(Encoder::new(Arc::new(tokenizer))).pad_id(0)
}

fn samples(rows: Rows) -> InMemory<CausalSample> {
    InMemory::new(rows.0.into_iter().map(|ids| CausalSample { ids, ..Default::default() }).collect())
}

/// The rows of [`ragged`], padded on the left to a multiple of 5.
fn padded_at_the_left() -> impl Batches<Batch = TokenBatch> {
    let padding = Padding::default().side(Side::Left).multiple_of(5).unwrap();
    Batcher::new(samples(ragged()), causal().padding(padding))
}

/// Rows of up to 20 tokens.
fn packed() -> impl Batches<Batch = TokenBatch> {
    let packs = Packs::new(samples(Rows::ragged(60)), 1, 20, |sample| sample.ids.len()).unwrap();
    Batcher::new(packs, Packing::new(causal(), 20))
}

#[test]
fn one_seed_is_one_run_and_another_is_another() {
    let one = whole(0.1, 1, ragged());
    assert_eq!(one, whole(0.1, 1, ragged()));
    assert!(difference(&one, &whole(0.1, 2, ragged())) > 1e-3);
    assert!(difference(&one, &whole(0.0, 1, ragged())) > 1e-3);
}

#[test]
fn micro_batches_drop_what_the_whole_batch_drops() {
    let one = whole(0.1, 1, ragged());
    for micro in [1, 2, 4, 8] {
        let trainer = Trainer::new().steps(5).seed(1).with(Accumulate(16 / micro));
        let cut = train(trainer, 0.1, ragged(), micro);
        let found = difference(&parameters(&cut.model), &one);
        assert!(found < 1e-5, "micro-batches of {micro}: {found:e}");
    }
}

#[test]
fn padding_at_the_left_changes_nothing() {
    let one = whole(0.1, 1, ragged());
    let left = whole(0.1, 1, padded_at_the_left());
    assert!(difference(&left, &one) < 1e-5, "{:e}", difference(&left, &one));
    let trainer = Trainer::new().steps(5).seed(1).with(Accumulate(8));
    let cut = parameters(&train(trainer, 0.1, padded_at_the_left(), 2).model);
    assert!(difference(&cut, &one) < 1e-5, "{:e}", difference(&cut, &one));
}

/// A row of several samples counts as one sample.
#[test]
fn packed_rows_drop_alike_however_they_are_cut() {
    let one = whole(0.1, 1, packed());
    assert!(difference(&one, &whole(0.1, 2, packed())) > 1e-3);
    let trainer = Trainer::new().steps(5).seed(1).with(Accumulate(8));
    let cut = parameters(&train(trainer, 0.1, packed(), 2).model);
    assert!(difference(&cut, &one) < 1e-5, "{:e}", difference(&cut, &one));
}

#[test]
fn it_learns_in_spite_of_dropout() {
    fn loss(steps: u64, data: impl Batches<Batch = TokenBatch>) -> f64 {
        let (data, trainer) = (Data::new(data).micro_batch(16), Trainer::new().steps(steps));
        trainer.fit(gpt(0.1), adamw(), Schedule::constant(1e-2), data).unwrap().last_step.loss
    }
    let losses = [1, 150].map(|steps| [loss(steps, padded_at_the_left()), loss(steps, packed())]);
    let [before, after] = losses;
    assert!(after[0] < 0.8 * before[0] && after[1] < 0.8 * before[1], "{losses:?}");
}

/// The mask computed by tensor operations on the device equals the one that the host computes for Flex.
#[cfg(feature = "wgpu")]
#[test]
fn wgpu_drops_what_the_cpu_drops() {
    use burn::tensor::Tensor;
    use firebrick::Pass;
    use firebrick::strategies::{Draws, Dropout};

    let (wgpu, name) = firebrick::device::find("wgpu").expect("built with feature `wgpu`: a device of it");
    for shape in [[3, 2, 70, 129], [1, 1, 1, 1], [2, 1, 300, 7]] {
        let kept = |device: &burn::tensor::Device| -> Vec<f32> {
            let pass = Pass::train(device).drawing(Draws { seed: u64::MAX, epoch: 3, first: 1 << 40 });
            let pass = pass.starting_at((0..shape[0]).map(|row| 5 * row).collect());
            let x = Tensor::<4>::ones(shape, device);
            Dropout::new(0.8).forward_along(x, &[2, 3], &pass).into_data().iter().collect()
        };
        assert_eq!(kept(&wgpu), kept(&burn::tensor::Device::flex()), "{name}");
    }
}
