//! Tests of the decoder: its initial weights, which positions are read, and packing.

use std::sync::Arc;

use burn::optim::GradientsParams;
use firebrick_datasets::collators::{CausalLm, CausalSample, Packing};
use firebrick_datasets::{Batch, Collator, Drawn, Encoder, Padding, Side, Tokenizer};
use firebrick_kernels::Draws;

use super::*;
use crate::testing;

fn config() -> GptConfig {
    GptConfig { layers: 8, heads: 4, width: 64, dropout: 0.0, bias: true, tied: false }
}

fn std(weights: Tensor<2>) -> f32 {
    weights.inner().square().mean().sqrt().into_scalar()
}

#[test]
fn weights_start_as_gpt2s() {
    let gpt = config().init(100, 32, &testing::device());
    let block = &gpt.blocks[7];
    let residual = 0.02 / 16f32.sqrt();
    for (weights, expected) in [
        (gpt.tokens.weight.val(), 0.02),
        (gpt.positions.weight.val(), 0.02),
        (gpt.head.as_ref().unwrap().weight.val(), 0.02),
        (block.attention.query_key_value.weight.val(), 0.02),
        (block.attention.output.weight.val(), residual),
        (block.widen.weight.val(), 0.02),
        (block.narrow.weight.val(), residual),
    ] {
        let found = std(weights);
        assert!((found / expected - 1.0).abs() < 0.1, "{found} {expected}");
    }
    let bias = block.narrow.bias.as_ref().unwrap().val().into_data();
    assert!(bias.iter::<f32>().all(|x| x == 0.0));
}

#[test]
fn a_position_reads_nothing_after_it() {
    let device = testing::device();
    let gpt = config().init(10, 8, &device);
    let logits = |tokens: [[i32; 5]; 1]| -> Vec<f32> {
        let tokens = Tensor::<2, Int>::from_data(tokens, &device);
        let logits = gpt.forward(tokens, &Pass::evaluate(&device)).narrow(1, 0, 3);
        logits.into_data().iter().collect()
    };
    assert_eq!(logits([[1, 2, 3, 4, 5]]), logits([[1, 2, 3, 9, 0]]));
    assert_ne!(logits([[1, 2, 3, 4, 5]]), logits([[7, 2, 3, 4, 5]]));
}

/// The loss and all gradients of a batch.
fn step(gpt: &Gpt, batch: TokenBatch) -> (f64, Vec<f32>) {
    let items = batch.items();
    let loss = gpt.loss(batch, &Pass::train(&testing::device().autodiff()));
    assert_eq!(loss.items, items);
    let value = loss.sum.clone().into_scalar::<f64>();
    let grads = GradientsParams::from_grads(loss.sum.backward(), gpt);
    let of = |param: &Linear| -> Vec<f32> {
        grads.get::<2>(param.weight.id).unwrap().into_data().iter().collect()
    };
    let blocks = gpt.blocks.iter();
    (value, blocks.flat_map(|block| of(&block.attention.query_key_value)).collect())
}

/// Samples that are packed into a row, or padded at either side, give the same results as alone.
#[test]
fn packing_and_padding_change_nothing() {
    let tokenizer = Arc::new(Tokenizer::characters("abcdefghij").unwrap());
    let causal = || CausalLm::new(Encoder::new(tokenizer.clone())).pad_id(0);
    let sample = |length: u32| {
        let ids = (0..length).map(|at| (at * at + length) % 10).collect();
        Arc::new(CausalSample { ids, prompt: (length / 5) as usize, ..Default::default() })
    };
    let samples: Vec<_> = [5, 2, 7, 1, 3].map(sample).into();
    let drawn = |sample: &Arc<CausalSample>| Drawn { epoch: 0, index: 0, sample: sample.clone() };
    let gpt = GptConfig { layers: 2, ..config() }.init(10, 20, &testing::device().autodiff());

    let (mut loss, mut grads) = (0.0, Vec::new());
    for sample in samples.iter().filter(|sample| sample.ids.len() > 1) {
        let (of_one, grads_of_one) = step(&gpt, causal().collate(&[drawn(sample)]).unwrap());
        loss += of_one;
        grads.resize(grads_of_one.len(), 0.0);
        grads.iter_mut().zip(grads_of_one).for_each(|(sum, grad)| *sum += grad);
    }
    let left = causal().padding(Padding::default().side(Side::Left).multiple_of(8).unwrap());
    let packs = [samples[..3].to_vec(), samples[3..].to_vec()];
    let packs = packs.map(|pack| Drawn { epoch: 0, index: 0, sample: Arc::new(pack) });
    let all: Vec<_> = samples.iter().map(drawn).collect();
    for batch in [
        causal().collate(&all).unwrap(),
        left.collate(&all).unwrap(),
        Packing::new(causal(), 14).collate(&packs).unwrap(),
    ] {
        let (found, found_grads) = step(&gpt, batch);
        assert!((found - loss).abs() < 1e-4 * loss, "{found} {loss}");
        let largest = grads.iter().fold(0f32, |most, x| most.max(x.abs()));
        for (found, expected) in found_grads.iter().zip(&grads) {
            assert!((found - expected).abs() < 1e-4 * largest, "{found} {expected}");
        }
    }
}

#[test]
fn an_untrained_model_predicts_uniformly() {
    let device = testing::device();
    let gpt = config().init(10, 8, &device);
    let rows = vec![vec![1, 2, 3, 4], vec![5, 6]];
    let batch = TokenBatch::from_rows(rows, 0).unwrap();
    let loss = gpt.loss(batch, &Pass::evaluate(&device));
    assert_eq!(loss.items, 4);
    let mean = loss.sum.into_scalar::<f32>() / 4.0;
    assert!((mean - 10f32.ln()).abs() < 0.3, "{mean}");
}

#[test]
fn a_tied_head_adds_no_parameter() {
    let untied = config().init(100, 32, &testing::device()).num_params();
    let tied = GptConfig { tied: true, ..config() };
    assert_eq!(untied - tied.init(100, 32, &testing::device()).num_params(), 64 * 100);
}

#[test]
fn dropout_acts_in_training_only() {
    let device = testing::device().autodiff();
    let config = GptConfig { dropout: 0.5, ..config() };
    let gpt = config.init(10, 8, &device);
    let tokens = Tensor::<2, Int>::from_data([[1, 2, 3, 4]], &device);
    let logits = |pass: Pass| gpt.forward(tokens.clone(), &pass).into_data();
    let draws = |seed| Draws { seed, ..Draws::default() };
    let trained = |seed| logits(Pass::train(&device).drawing(draws(seed)));
    let measured = |seed| logits(Pass::evaluate(&device).drawing(draws(seed)));
    assert_eq!(trained(1), trained(1));
    assert_ne!(trained(1), trained(2));
    assert_eq!(measured(1), measured(2));
    assert_ne!(measured(1), trained(1));
}
