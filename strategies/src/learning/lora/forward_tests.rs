use burn::module::{Module, Param};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::quantization::{QuantScheme, QuantStore, QuantValue};
use burn::tensor::{Device, FloatDType, TensorData};
use firebrick_kernels::{Draws, with_unread_products};

use super::*;
use crate::{Adaptation, Composition, FactorValues, Lora, LowRank, StartingFactors, StrategyError, testing};

const SHAPE: [usize; 3] = [3, 4, 5];

fn device() -> Device {
    testing::device().autodiff()
}

fn wave<const D: usize>(shape: [usize; D], seed: usize) -> TensorData {
    let of = |at: usize| ((at + seed) as f32 * 0.7 + 0.3).sin();
    TensorData::new((0..shape.iter().product()).map(of).collect::<Vec<_>>(), shape)
}

/// A layer whose weight has factors that are not 0.
fn adapted(lora: Lora) -> (Linear, Adaptation) {
    let low_rank = LowRank { rank: 2, alpha: 3.0, rank_stabilized: false, dora: lora.dora };
    let magnitude = lora.dora.then(|| wave([6], 5));
    let values = FactorValues { a: wave([5, 2], 1), b: wave([2, 6], 2), magnitude };
    let factors = vec![("weight".into(), values)];
    let start =
        StartingFactors { source: "a test".into(), low_rank, factors, whole: Vec::new(), given: Vec::new() };
    let mut adaptation = Adaptation::seeded(1).starting_from(Some(start.into()));
    let model = LinearConfig::new(5, 6).init(&device());
    (lora.alpha(3.0).on(["weight"]).adapt(model, &mut adaptation).unwrap(), adaptation)
}

fn pass() -> Pass {
    Pass::train(&device()).drawing(Draws { seed: 7, epoch: 1, first: 4 })
}

fn values<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().iter::<f32>().collect()
}

fn close(found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-5 * expected.abs().max(1.0), "{found} {expected}");
    }
}

fn run(layer: &Linear, x: Tensor<3>, pass: &Pass) -> Tensor<3> {
    adapted_linear(x, &layer.weight, layer.bias.as_ref().map(Param::val), pass)
}

/// Returns the output for the same input, and the gradients of input, A and B.
fn trained(layer: &Linear, forward: impl Fn(Tensor<3>) -> Tensor<3>) -> [Vec<f32>; 4] {
    let x = Tensor::from_data(wave(SHAPE, 3), &device()).require_grad();
    let y = forward(x.clone());
    let weights = Tensor::<3>::from_data(wave([3, 4, 6], 4), &device());
    let grads = (y.clone() * weights).sum().backward();
    let factors = layer.weight.reparameterization::<LoraFactors>().unwrap();
    let [a, b] = [&factors.a, &factors.b].map(|factor| values(factor.val().grad(&grads).unwrap()));
    [values(y), values(x.grad(&grads).unwrap()), a, b]
}

#[test]
fn in_training_the_input_of_the_factors_alone_is_dropped() {
    let (layer, _) = adapted(Lora::rank(2).dropout(0.4));
    let factors = layer.weight.reparameterization::<LoraFactors>().unwrap();
    // x·W + bias + s · drop(x)·A·B, with the mask of `Dropout`.
    let by_hand = |x: Tensor<3>| {
        let dropped = Dropout::new(0.4).forward(x.clone(), &pass());
        let base = x.matmul(layer.weight.base().unsqueeze()) + layer.bias.as_ref().unwrap().val().unsqueeze();
        base + dropped.matmul(factors.a.val().unsqueeze()).matmul(factors.b.val().unsqueeze()) * 1.5
    };
    let found = trained(&layer, |x| run(&layer, x, &pass()));
    let expected = trained(&layer, by_hand);
    found.iter().zip(&expected).for_each(|(found, expected)| close(found, expected));
    let undropped = trained(&layer, |x| run(&layer, x, &Pass::evaluate(&device())));
    assert_ne!(undropped[0], found[0]);

    // A sample drops the same, wherever the batch is cut.
    let x = Tensor::<3>::from_data(wave(SHAPE, 3), &device());
    let second = pass().drawing(Draws { first: 5, ..pass().draws() });
    let whole = run(&layer, x.clone(), &pass()).narrow(0, 1, 1);
    close(&values(run(&layer, x.narrow(0, 1, 1), &second)), &values(whole));
}

/// As PEFT's `DoraLinearLayer` with a dropout.
#[test]
fn with_magnitudes_the_input_of_the_whole_change_is_dropped() {
    let (layer, _) = adapted(Lora::rank(2).dropout(0.4).dora());
    let factors = layer.weight.reparameterization::<LoraFactors>().unwrap();
    let magnitude = factors.magnitude.as_ref().unwrap();
    let (weight, bias) = (layer.weight.base(), layer.bias.as_ref().unwrap().val());
    let by_hand = |x: Tensor<3>| {
        let dropped = Dropout::new(0.4).forward(x.clone(), &pass());
        let delta = factors.a.val().matmul(factors.b.val()) * 1.5;
        let norm = (weight.clone() + delta).detach().square().sum_dim(0).sqrt();
        let gain = (magnitude.val().unsqueeze::<2>() / norm).unsqueeze::<3>();
        let of_factors =
            dropped.clone().matmul(factors.a.val().unsqueeze()).matmul(factors.b.val().unsqueeze());
        let change =
            (gain.clone() - 1.0) * dropped.matmul(weight.clone().unsqueeze()) + gain * of_factors * 1.5;
        x.matmul(weight.clone().unsqueeze()) + bias.clone().unsqueeze() + change
    };
    let of_magnitude = |forward: &dyn Fn(Tensor<3>) -> Tensor<3>| {
        let x = Tensor::<3>::from_data(wave(SHAPE, 3), &device());
        values(magnitude.val().grad(&(forward(x).square().sum()).backward()).unwrap())
    };
    let run = |x: Tensor<3>| run(&layer, x, &pass());
    trained(&layer, run).iter().zip(&trained(&layer, by_hand)).for_each(|(a, b)| close(a, b));
    close(&of_magnitude(&run), &of_magnitude(&by_hand));
    let expected = trained(&layer, run);
    let found = trained(&layer, |x| with_unread_products(|| run(x)));
    assert_eq!(found[1..], expected[1..], "also at the end of a recomputed segment");
}

#[test]
fn at_the_end_of_a_recomputed_segment_gradients_are_the_same() {
    let (layer, _) = adapted(Lora::rank(2).dropout(0.4));
    let expected = trained(&layer, |x| run(&layer, x, &pass()));
    let found = trained(&layer, |x| with_unread_products(|| run(&layer, x, &pass())));
    assert!(found[0].iter().all(|y| y.is_nan()));
    assert_eq!(found[1..], expected[1..]);
}

#[test]
fn evaluation_reads_the_sum_and_draws_nothing() {
    let (layer, _) = adapted(Lora::rank(2).dropout(0.4));
    let x = Tensor::<3>::from_data(wave(SHAPE, 3), &device());
    let evaluated = run(&layer, x.clone(), &Pass::evaluate(&device()));
    close(&values(evaluated), &values(layer.forward(x)));
    let flat = Tensor::<1>::from_data(wave([5], 3), &device());
    for pass in [pass(), Pass::evaluate(&device())] {
        let y = adapted_linear(flat.clone(), &layer.weight, None, &pass);
        let row = adapted_linear(flat.clone().unsqueeze::<2>(), &layer.weight, None, &pass.again());
        assert_eq!(values(y), values(row));
    }
}

#[test]
fn without_a_dropout_later_masks_are_those_of_a_plain_model() {
    let site = |lora: Lora| {
        let (layer, pass) = (adapted(lora).0, pass());
        run(&layer, Tensor::from_data(wave(SHAPE, 3), &device()), &pass);
        pass.next_site()
    };
    assert_eq!(site(Lora::rank(2)), pass().next_site());
    assert_ne!(site(Lora::rank(2).dropout(0.1)), pass().next_site());
}

#[test]
fn it_computes_in_the_dtype_of_the_factors() {
    let (layer, _) = adapted(Lora::rank(2).dropout(0.4));
    let x = Tensor::<3>::from_data(wave(SHAPE, 3), &device());
    let expected = values(run(&layer, x.clone(), &pass()));
    let half = crate::cast_params(layer, |_| FloatDType::BF16);
    let y = run(&half, x, &pass());
    assert_eq!(FloatDType::from(y.dtype()), FloatDType::F32, "and returns that of its input");
    let y = values(y);
    assert!(y.iter().zip(&expected).all(|(y, expected)| (y - expected).abs() < 0.1));
    assert_ne!(y, expected);
}

/// Burn's quantizer packs weights before Lora adapts them.
#[test]
fn quantized_weights_are_read_as_floats() {
    let layer: Linear = LinearConfig::new(8, 6).init(&device());
    let scheme = QuantScheme::default().with_store(QuantStore::Native).with_value(QuantValue::Q8S);
    let packed =
        Linear { weight: layer.weight.clone().map(|weight| weight.quantize_dynamic(&scheme)), ..layer };
    let x = Tensor::<3>::from_data(wave([1, 2, 8], 3), &device());
    let dequantized = packed.weight.val().dequantize();
    let expected =
        x.clone().matmul(dequantized.unsqueeze()) + packed.bias.as_ref().unwrap().val().unsqueeze();
    for lora in
        [Lora::rank(2), Lora::rank(2).dora(), Lora::rank(2).dropout(0.4), Lora::rank(2).dora().dropout(0.4)]
    {
        let adapted = lora.on(["weight"]).adapt(packed.clone(), &mut Adaptation::seeded(1)).unwrap();
        assert!(!adapted.weight.base().dtype().is_float());
        let y = run(&adapted, x.clone(), &pass());
        close(&values(y.clone()), &values(expected.clone()));
        let factors = adapted.weight.reparameterization::<LoraFactors>().unwrap();
        let grad = factors.b.val().grad(&y.sum().backward()).unwrap();
        assert!(values(grad).iter().any(|grad| *grad != 0.0));
    }
}

#[test]
fn a_layer_that_reads_the_sum_in_training_is_told() {
    let x = || Tensor::<3>::from_data(wave(SHAPE, 3), &device());
    let (layer, adaptation) = adapted(Lora::rank(2).dropout(0.4));
    run(&layer, x(), &pass());
    undropped_linear(x(), &layer.weight, None);
    // Outside autodiff, it evaluates.
    layer.valid().forward(x().inner());
    adaptation.check().unwrap();
    layer.forward(x());
    let parameter = "weight".to_string();
    assert_eq!(adaptation.check(), Err(StrategyError::NothingDropped { parameter }));
    let (layer, adaptation) = adapted(Lora::rank(2));
    layer.forward(x());
    adaptation.check().unwrap();
}

#[derive(Module, Debug)]
struct Words {
    tokens: Embedding,
    head: Linear,
}

#[test]
fn factors_of_a_table_have_no_input_to_drop() {
    let words = |tied: bool| {
        let tokens = EmbeddingConfig::new(6, 5).init(&device());
        let mut head = LinearConfig::new(6, 5).with_bias(false).init(&device());
        if tied {
            head.weight = tokens.weight.clone();
        }
        Words { tokens, head }
    };
    let adapt = |tied, adaptation: &mut Adaptation| {
        Lora::rank(2).dropout(0.4).on(["tokens"]).adapt(words(tied), adaptation)
    };
    let mut adaptation = Adaptation::seeded(1);
    let model = adapt(false, &mut adaptation).unwrap();
    model.tokens.forward(Tensor::from_data([[1, 2]], &device()));
    adaptation.check().unwrap();
    let error = adapt(true, &mut Adaptation::seeded(1)).unwrap_err();
    assert_eq!(error, StrategyError::DropsEmbedding { parameter: "head.weight".into() });
}
