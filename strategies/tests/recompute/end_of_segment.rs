//! The last product of a segment, which a recomputation skips.

use std::sync::{Arc, Mutex};

use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::Tensor;
use firebrick_kernels::{Draws, linear};
use firebrick_strategies::{Pass, Recompute};

use crate::{WIDTH, device, gradients, input, pass, plain};

/// A block without Burn's dropout, with which every recomputation is verified.
#[derive(Module, Debug)]
struct Block {
    wide: Linear,
    narrow: Linear,
}

#[derive(Module, Debug)]
struct Model {
    blocks: Vec<Block>,
}

impl Model {
    fn new() -> Self {
        let layer = |from, to| LinearConfig::new(from, to).init(&device());
        let block = |_| Block { wide: layer(WIDTH, 3 * WIDTH), narrow: layer(3 * WIDTH, WIDTH) };
        Self { blocks: (0..2).map(block).collect() }
    }
}

/// Whether each end of a segment computed a value.
type Computed = Arc<Mutex<Vec<bool>>>;

fn forward(block: &Block, x: Tensor<2>, pass: &Pass, computed: &Computed) -> Tensor<2> {
    let hidden = block.wide.forward(x.clone()).tanh();
    let layer = &block.narrow;
    pass.end_of_segment(|| {
        let y = linear(hidden, layer.weight.val(), layer.bias.as_ref().map(|bias| bias.val()));
        computed.lock().unwrap().push(!y.clone().inner().is_nan().any().into_scalar::<bool>());
        x + y
    })
}

/// Runs each pair of blocks in a segment of its own if `nests`.
fn trained(model: &Model, pass: &Pass, nests: bool) -> (Vec<Option<Vec<f32>>>, Vec<bool>) {
    let computed = Computed::default();
    let of_each = {
        let computed = computed.clone();
        move |block: &Block, x: Tensor<2>, pass: &Pass| forward(block, x, pass, &computed)
    };
    let x = input(5, &device());
    let y = match nests {
        false => model.blocks.iter().fold(x, |x, block| pass.segment(block, x, of_each.clone())),
        true => pass.segment(model, x, move |model, x, pass| {
            model.blocks.iter().fold(x, |x, block| pass.segment(block, x, of_each.clone()))
        }),
    };
    let gradients = gradients(model, y.sum());
    let computed = computed.lock().unwrap().clone();
    (gradients, computed)
}

#[test]
fn a_recomputation_skips_it_once_its_block_is_verified() {
    let model = Model::new();
    let (expected, computed) = trained(&model, &plain(), false);
    assert_eq!(computed, [true; 2]);
    let pass = pass(&model, &Recompute::every_block());
    // The first recomputation of each block is compared with its forward pass.
    let (found, computed) = trained(&model, &pass.drawing(Draws::default()), false);
    assert_eq!(computed, [true; 4]);
    assert!(found == expected);
    let (found, computed) = trained(&model, &pass.drawing(Draws::default()), false);
    assert_eq!(computed, [true, true, false, false]);
    assert!(found == expected);
}

/// What an inner segment returns is an input of the next one.
#[test]
fn a_segment_in_a_recomputed_segment_computes_all_of_its_values() {
    let model = Model::new();
    let expected = trained(&model, &plain(), true).0;
    let pass = pass(&model, &Recompute::every_block());
    for _ in 0..2 {
        let (found, computed) = trained(&model, &pass.drawing(Draws::default()), true);
        assert!(found == expected);
        // The forward pass and the recomputation of the outer segment; those of the inner ones come after.
        assert_eq!(computed[..4], [true; 4]);
    }
}
