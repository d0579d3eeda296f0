use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{DType, Tensor, TensorData};
use firebrick_kernels::packed::PackedMatrix;
use firebrick_world::World;

use super::*;
use crate::{Amp, Composed, Composition, Freeze, Lora, LoraFactors, testing};

#[derive(Module, Debug)]
struct Tagger {
    table: Embedding,
    blocks: Vec<Linear>,
    pool: Linear,
    head: Linear,
}

/// The first two of three blocks share a matrix.
fn tagger() -> Tagger {
    let device = testing::device().autodiff();
    let layer = || LinearConfig::new(8, 8).init(&device);
    let first: Linear = layer();
    let again = Linear { weight: first.weight.clone(), bias: layer().bias };
    Tagger {
        table: EmbeddingConfig::new(5, 8).init(&device),
        blocks: vec![first, again, layer()],
        pool: LinearConfig::new(8, 8).init(&device),
        head: LinearConfig::new(8, 3).init(&device),
    }
}

fn adapt<M: Module + 'static>(strategies: impl Composition<M>, model: M) -> (M, Adaptation) {
    let mut adaptation = Adaptation::seeded(3);
    (strategies.adapt(model, &mut adaptation).unwrap(), adaptation)
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter().collect()
}

fn rounded(packing: Packing, weight: Tensor<2>) -> Vec<f32> {
    let shape = weight.dims();
    packing.pack(&numbers(weight), shape).to_f32()
}

#[test]
fn frozen_matrices_of_blocks_are_packed_and_nothing_else() {
    let given = tagger();
    for (quantize, packing) in [(Quantize::nf4(), Packing::Nf4), (Quantize::int8(), Packing::Int8)] {
        let frozen = Freeze::paths(["*"]);
        let (model, adaptation) = adapt(Composed::new().with(frozen).with(quantize), given.clone());
        assert_eq!(adaptation.quantized().count(), 2);
        for (block, given) in model.blocks.iter().zip(&given.blocks) {
            assert_eq!(block.weight.base().dims(), [1, 1]);
            assert!(!block.weight.val().is_require_grad() && block.weight.val().is_autodiff());
            assert_eq!(numbers(block.weight.val()), rounded(packing, given.weight.val()));
            assert_eq!(block.bias.as_ref().unwrap().base().dims(), [8]);
        }
        assert_eq!((model.table.weight.base().dims(), model.head.weight.base().dims()), ([5, 8], [8, 3]));
        assert_eq!(model.pool.weight.base().dims(), [8, 8]);
        let back = adaptation.give_back(model);
        assert_eq!(numbers(back.blocks[1].weight.base()), rounded(packing, given.blocks[0].weight.val()));
        assert!(back.blocks[1].weight.is_require_grad());
        assert_eq!(numbers(back.head.weight.base()), numbers(given.head.weight.val()));
    }
}

#[test]
fn trained_matrices_stay_as_they_are() {
    let lora = Lora::rank(2).on(["blocks.0.weight"]).also(["blocks.2"]);
    let (model, adaptation) = adapt(Composed::new().with(lora).with(Quantize::nf4()), tagger());
    assert_eq!(adaptation.quantized().map(|(id, _)| id).collect::<Vec<_>>(), [model.blocks[0].weight.id]);
    assert_eq!(model.blocks[2].weight.base().dims(), [8, 8]);
}

#[test]
fn a_matrix_is_unpacked_in_the_dtype_of_the_replica() {
    let device = testing::device().autodiff();
    let lora = Lora::rank(2).on(["blocks.2.weight"]);
    let strategies = Composed::new().with(lora).with(Quantize::nf4()).with(Amp::bf16());
    let given = tagger();
    let (model, _) = adapt(strategies.clone(), given.clone());
    let mut stages = strategies.start(&mut Setup::new(&model, &device)).unwrap();
    let master = stages.init_master(model).unwrap();
    let replica = stages.publish(master).unwrap();
    for (block, given) in replica.blocks.iter().zip(&given.blocks) {
        assert_eq!(block.weight.val().dtype(), DType::BF16);
        let expected = TensorData::new(rounded(Packing::Nf4, given.weight.val()), [8, 8]);
        assert_eq!(block.weight.val().into_data(), expected.convert_dtype(DType::BF16));
    }
}

/// Burn's graph would keep the unpacked matrices of all blocks.
#[test]
fn blocks_run_again_in_the_backward_pass() {
    let device = testing::device().autodiff();
    let strategies = Composed::new().with(Lora::rank(2).on(["blocks.*.weight"])).with(Quantize::nf4());
    let (model, _) = adapt(strategies.clone(), tagger());
    let mut setup = Setup::new(&model, &device);
    strategies.start(&mut setup).unwrap();
    let (pass, runs) = (setup.into_pass(), Arc::new(AtomicUsize::new(0)));
    let y = model.blocks.iter().fold(Tensor::<2>::ones([2, 8], &device), |x, block| {
        let runs = runs.clone();
        pass.segment(block, x, move |block: &Linear, x, _| {
            runs.fetch_add(1, Relaxed);
            block.forward(x).tanh()
        })
    });
    assert_eq!(runs.load(Relaxed), 3);
    let grads = y.sum().backward();
    assert_eq!(runs.load(Relaxed), 6);
    let factors = model.blocks[0].weight.reparameterization::<LoraFactors>().unwrap();
    assert!(factors.b.grad(&grads).is_some());
    pass.check().unwrap();
}

#[test]
fn matrices_are_packed_behind_the_factors_wherever_it_is_written() {
    let packed = |strategies: Composed<Tagger>| {
        let mut adaptation = Adaptation::default();
        strategies.adapt(tagger(), &mut adaptation).unwrap();
        adaptation.quantized().count()
    };
    let lora = || Lora::rank(2).on(["blocks.*.weight"]);
    let behind = packed(Composed::new().with(lora()).with(Quantize::nf4()));
    let before = packed(Composed::new().with(Quantize::nf4()).with(lora()));
    assert!(behind > 0 && before == behind, "{before}, {behind}");
}

#[test]
fn a_matrix_with_a_number_that_is_not_finite_is_refused() {
    for number in [f32::NAN, f32::INFINITY] {
        let mut model = tagger();
        model.blocks[2].weight = model.blocks[2].weight.clone().map(|weight| weight * number);
        let strategies = Composed::new().with(Freeze::paths(["blocks"])).with(Quantize::nf4());
        let error = strategies.adapt(model, &mut Adaptation::default()).unwrap_err().to_string();
        assert!(error.contains("`blocks.2.weight`") && error.contains("not finite"), "{error}");
    }
}

#[test]
fn ranks_with_other_matrices_are_refused() {
    let results = |differ: bool| {
        let ranks = World::threads(2).join().unwrap();
        let check = |rank: firebrick_world::Communicator| {
            let number = if differ { rank.rank() as f32 } else { 0.0 };
            let mut adaptation = Adaptation::default();
            let packed = Packing::Nf4.pack(&[1.0, number, 0.0, 0.5], [2, 2]);
            adaptation.base_of(ParamId::new()).set(PackedMatrix::new(packed));
            adaptation.require_same_quantized(&rank)
        };
        thread::scope(|scope| {
            let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| check(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        })
    };
    assert_eq!(results(false), [Ok(()), Ok(())]);
    assert_eq!(results(true), [Err(StrategyError::OtherBase), Err(StrategyError::OtherBase)]);
}
