//! Linear layers of blocks that multiply in 8 bits: beside bf16, with other strategies, and where it has no effect.

use crate::support::many::{Setting, furthest};
use crate::support::*;
use burn::module::{Module, Param};
use burn::optim::AdamWConfig;
use burn::tensor::{Device, FloatDType, Tensor};
use firebrick::strategies::{
    Accumulate, Composed, Composition, Paths, Setup, StrategyError, Zero, adapted_linear,
};
use firebrick::{Amp, Clip, Data, Lora, Pass, Recompute, Schedule, Trainer};
use firebrick_models::{Gpt, GptConfig};

type Recipe = Composed<Gpt>;

fn boxed(strategy: impl Composition<Gpt>) -> Recipe {
    Composed::new().with(strategy)
}

/// Returns the losses of a run on so many ranks, each with so many micro-batches.
fn losses(ranks: usize, micro_batches: usize, strategies: Vec<Recipe>) -> Vec<f64> {
    let setting = Setting { dropout: 0.0, ..Setting::default() };
    setting.cut_for(4, 1).run(ranks, micro_batches, strategies).losses
}

#[test]
fn losses_follow_bf16_but_are_not_its() {
    if !has_bf16() {
        return;
    }
    let [in_bf16, in_fp8] = [Amp::bf16(), Amp::fp8()].map(|amp| losses(1, 1, vec![boxed(amp)]));
    let apart = furthest(&in_fp8, &in_bf16);
    assert!(apart > 1e-4 && apart < 1e-2, "{apart:.1e}: {in_fp8:?} {in_bf16:?}");
}

/// A micro-batch has scales of its own, so sums of several are not those of one. Blocks that run again have the same.
#[test]
fn how_a_step_is_executed_changes_no_more_than_rounding() {
    if !has_bf16() {
        return;
    }
    let amp = || boxed(Amp::fp8());
    let clip = || boxed(Clip::norm(0.3));
    let plain = losses(1, 1, vec![amp(), clip()]);
    let again = losses(1, 1, vec![amp(), boxed(Recompute::every_block()), clip()]);
    assert_eq!(again, plain);
    let zero = |stage| boxed(Zero::stage(stage).replicate_below(20));
    let accumulated = losses(1, 2, vec![amp(), boxed(Accumulate(2)), clip()]);
    let sharded = (1..=3).map(|stage| losses(2, 1, vec![zero(stage), amp(), clip()]));
    let both =
        losses(2, 2, vec![zero(2), amp(), boxed(Accumulate(2)), boxed(Recompute::every_block()), clip()]);
    for found in sharded.chain([accumulated, both]) {
        let apart = furthest(&found, &plain);
        assert!(apart < 5e-3, "{apart:.1e}: {found:?} {plain:?}");
    }
}

#[test]
fn adapted_layers_multiply_in_8_bits_too() {
    if !has_bf16() {
        return;
    }
    for lora in [Lora::rank(2).alpha(4.0), Lora::rank(2).alpha(4.0).dropout(0.2)] {
        let [in_bf16, in_fp8] =
            [Amp::bf16(), Amp::fp8()].map(|amp| losses(1, 1, vec![boxed(lora.clone()), boxed(amp)]));
        let apart = furthest(&in_fp8, &in_bf16);
        assert!(apart > 1e-5 && apart < 1e-2, "{apart:.1e}");
    }
}

#[test]
fn evaluation_is_that_of_bf16() {
    if !has_bf16() {
        return;
    }
    let evaluated = |amp: Amp| {
        let data = Data::new(Rows::ragged(8)).micro_batch(4).valid(Rows::ragged(8));
        // With a rate of almost 0, both evaluate the same weights.
        let trained = Trainer::new().with(amp).steps(1).evaluate_every(1);
        let model = gpt(0.0, &device().autodiff());
        let optimizer = AdamWConfig::new().init();
        trained.fit(model, optimizer, Schedule::constant(1e-12), data).unwrap().report.valid_loss
    };
    assert_eq!(evaluated(Amp::fp8()), evaluated(Amp::bf16()));
}

#[test]
fn a_model_without_such_a_layer_is_refused_with_the_cause() {
    if !has_bf16() {
        return;
    }
    let trainer = || Trainer::new().with(Amp::fp8()).steps(1);
    let data = || Data::new(Rows::ragged(8)).micro_batch(4);
    // No block is a multiple of 16 wide.
    let config = GptConfig { layers: 2, heads: 2, width: 20, dropout: 0.0, bias: true, tied: true };
    let narrow = config.init(VOCABULARY, 9, &device().autodiff());
    let error = trainer().fit(narrow, adamw(), Schedule::constant(1e-3), data()).unwrap_err().to_string();
    assert!(
        error.contains("no multiple of 16, such as `blocks.0.") && error.contains("Amp(bf16)"),
        "{error}"
    );
}

/// Two layers: one fits, one does not.
#[derive(Module, Debug)]
struct Pair {
    wide: Param<Tensor<2>>,
    narrow: Param<Tensor<2>>,
}

impl Pair {
    fn new(device: &Device) -> Self {
        let weight = |columns| Param::from_tensor(Tensor::ones([16, columns], device));
        Self { wide: weight(32), narrow: weight(24) }
    }

    fn run(&self, x: Tensor<2>, pass: &Pass) -> (Tensor<2>, Tensor<2>) {
        (adapted_linear(x.clone(), &self.wide, None, pass), adapted_linear(x, &self.narrow, None, pass))
    }
}

#[test]
fn a_layer_that_stays_in_bf16_is_told_once() {
    if !has_bf16() {
        return;
    }
    let device = device().autodiff();
    let model = vec![Pair::new(&device)];
    let mut setup = Setup::new(&model, &device);
    Composed::new().with(Amp::fp8()).with(Clip::norm(1.0)).start(&mut setup).unwrap();
    let pass = setup.into_pass();
    // 1.05 rounds to 1 in E4M3.
    let x = || Tensor::<2>::full([3, 16], 1.05, &device).cast(FloatDType::BF16);
    let in_bf16 = model.clone().map(&mut Cast);
    let sums = |pass: &Pass| {
        let (wide, narrow) = pass.segment(&in_bf16[0], x(), |pair, x, pass| pair.run(x, pass));
        [wide, narrow].map(|y| y.cast(FloatDType::F32).max().into_scalar::<f32>())
    };
    let outside = in_bf16[0].run(x(), &pass).0.cast(FloatDType::F32).max().into_scalar::<f32>();
    assert!(outside > 16.5, "outside of blocks, products are those of bf16");
    assert!(matches!(pass.not_in_fp8(), Err(StrategyError::NothingInFp8 { unfit }) if unfit.is_empty()));
    let [wide, narrow] = sums(&pass);
    assert!(wide == 16.0 && narrow > 16.5, "{wide} {narrow}");
    assert_eq!(pass.not_in_fp8().unwrap(), [Paths::of(&model).path(model[0].narrow.id).unwrap()]);
    sums(&pass);
    assert_eq!(pass.not_in_fp8().unwrap(), [""; 0]);
    let [wide, _] = sums(&pass.evaluating(FloatDType::BF16));
    assert!(wide > 16.5, "evaluation multiplies in bf16");
}

/// Casts all parameters to bf16.
struct Cast;

impl burn::module::ModuleMapper for Cast {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        Param::from_mapped_value(id, tensor.cast(FloatDType::BF16), mapper)
    }
}
