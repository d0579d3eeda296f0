//! The fused optimizers compared with Burn's on Flex: bit-identical in f32, AdamW except for rounding.

mod halves;
mod in_place;
mod on_device;

use std::cell::RefCell;

use burn::module::{Module, Param, ParamGroup, ParamId};
use burn::nn::Linear;
use burn::optim::{
    AdamWConfig, GradientsParams, LearningRate, LionConfig, ModuleOptimizer, Optimizer, RecordState,
    SgdConfig, StateSink, StateSource, decay::WeightDecayConfig, momentum::MomentumConfig,
};
use burn::tensor::{Device, FloatDType, Tensor, TensorData};

use super::model_optimizer::{ModelOptimizer, ParamsOptimizer};
use super::param_optimizer::{Fused, OfBurn, ParamOptimizer};
use super::{Adagrad, AdamW, Groups, Lion, ParamState, Sgd};

/// Lengths around the sizes of vectors, blocks and tasks.
const LENGTHS: [usize; 10] = [0, 1, 3, 17, 511, 513, 1025, 32_768, 32_769, 70_001];

/// Numbers of many magnitudes and both signs, with zeros, different for each `seed`.
fn numbers(length: usize, seed: usize) -> Vec<f32> {
    let number = |i: usize| {
        let bits = ((i + 1) * (2 * seed + 1)).wrapping_mul(0x9E37_79B9) as u32;
        let size = 10f32.powi(((bits >> 8) % 7) as i32 - 5);
        match bits % 11 {
            0 => 0.0,
            _ => size * ((bits >> 12) as f32 / 524_288.0 - 1.0),
        }
    };
    (0..length).map(number).collect()
}

fn vector(values: Vec<f32>) -> Tensor<1> {
    Tensor::from_data(TensorData::from(values.as_slice()), &Device::flex())
}

fn bits<const D: usize>(tensor: &Tensor<D>) -> Vec<u32> {
    // All NaNs are equal.
    let bits = |x: f32| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() };
    tensor.clone().cast(FloatDType::F32).into_data().iter::<f32>().map(bits).collect()
}

fn floats(tensor: &Tensor<1>) -> impl Iterator<Item = f32> {
    tensor.clone().into_data().iter::<f32>().collect::<Vec<_>>().into_iter()
}

/// Returns a vector after each update.
fn updates<O: Optimizer>(optimizer: &O, length: usize, gradients: &[Vec<f32>]) -> Vec<Tensor<1>> {
    let (mut param, mut state) = (vector(numbers(length, 99)), None);
    let update = |(step, gradient): (usize, &Vec<f32>)| {
        (param, state) = optimizer.step(rate(step), param.clone(), vector(gradient.clone()), state.take());
        param.clone()
    };
    gradients.iter().enumerate().map(update).collect()
}

fn rate(step: usize) -> LearningRate {
    1e-2 / (step + 1) as LearningRate
}

/// Compares both after each update of several runs: of many lengths, and with numbers that are not finite.
fn beside_burns(
    ours: &impl Optimizer,
    burns: &impl Optimizer,
    check: impl Fn(usize, &Tensor<1>, &Tensor<1>),
) {
    let mut runs: Vec<_> = LENGTHS
        .iter()
        .map(|&length| (length, (0..12).map(|step| numbers(length, step)).collect::<Vec<_>>()))
        .collect();
    let mut gradients = vec![numbers(40, 1), vec![0.0; 40], vec![-0.0; 40], numbers(40, 2)];
    gradients[0][7] = f32::NAN;
    gradients[3][8] = f32::INFINITY;
    gradients[3][9] = f32::NEG_INFINITY;
    gradients[3][10] = f32::MAX;
    gradients.push(numbers(40, 3));
    runs.push((40, gradients));
    for (length, gradients) in runs {
        let both = updates(ours, length, &gradients).into_iter().zip(updates(burns, length, &gradients));
        both.enumerate().for_each(|(step, (a, b))| check(step, &a, &b));
    }
}

fn same_as_burns(ours: &impl Optimizer, burns: &impl Optimizer, name: &str) {
    beside_burns(ours, burns, |step, a, b| assert!(bits(a) == bits(b), "{name}, {}, {step}", a.dims()[0]));
}

fn burns_adamw(beta_1: f32, beta_2: f32, epsilon: f32, decay: f32) -> burn::optim::AdamW {
    let config = AdamWConfig::new().with_beta_1(beta_1).with_beta_2(beta_2);
    config.with_epsilon(epsilon).with_weight_decay(decay).build()
}

fn burns_sgd(decay: f32, momentum: f64, dampening: f64, nesterov: bool) -> burn::optim::Sgd {
    let decay = (decay != 0.0).then(|| WeightDecayConfig::new(decay));
    let with =
        MomentumConfig::new().with_momentum(momentum).with_dampening(dampening).with_nesterov(nesterov);
    SgdConfig::new().with_weight_decay(decay).with_momentum((momentum != 0.0).then_some(with)).build()
}

#[test]
fn adamw_is_burns_within_its_rounding() {
    for (beta_1, beta_2, epsilon, decay) in
        [(0.9, 0.999, 1e-8, 0.0), (0.9, 0.95, 1e-8, 0.1), (0.0, 0.5, 1e-3, 2.0), (0.8, 0.9, 1e-5, 0.0)]
    {
        let ours = AdamW::new().betas(beta_1, beta_2).epsilon(epsilon).weight_decay(decay);
        // Burn computes 1 - β₂ᵗ in f32, which leaves five digits of it at first.
        beside_burns(&ours, &burns_adamw(beta_1, beta_2, epsilon, decay), |step, a, b| {
            for (a, b) in floats(a).zip(floats(b)) {
                let bound = 1e-6 * b.abs() + 5e-5 * rate(0) as f32;
                assert!(
                    (a - b).abs() <= bound || a.is_nan() && b.is_nan() || a == b,
                    "{ours:?}, {step}: {a} {b}"
                );
            }
        });
    }
}

/// The equation in f64.
#[test]
fn adamw_is_its_equation() {
    let (beta_1, beta_2, epsilon, decay) = (0.9f32, 0.999f32, 1e-8f32, 0.1f32);
    let ours = AdamW::new().betas(beta_1, beta_2).epsilon(epsilon).weight_decay(decay);
    let [beta_1, beta_2, epsilon, decay] = [beta_1, beta_2, epsilon, decay].map(f64::from);
    let gradients: Vec<_> = (0..12).map(|step| numbers(1025, step)).collect();
    let mut expected: Vec<_> = numbers(1025, 99).into_iter().map(|x| [f64::from(x), 0.0, 0.0]).collect();
    for (step, updated) in updates(&ours, 1025, &gradients).iter().enumerate() {
        let (eta, time) = (rate(step), step as i32 + 1);
        for (([theta, m, v], g), found) in expected.iter_mut().zip(&gradients[step]).zip(floats(updated)) {
            let g = f64::from(*g);
            *m = beta_1 * *m + (1.0 - beta_1) * g;
            *v = beta_2 * *v + (1.0 - beta_2) * g * g;
            let (first, second) = (*m / (1.0 - beta_1.powi(time)), *v / (1.0 - beta_2.powi(time)));
            *theta = (1.0 - eta * decay) * *theta - eta * first / (second.sqrt() + epsilon);
            let apart = (f64::from(found) - *theta).abs();
            assert!(apart <= 1e-6 * (theta.abs() + rate(0)), "{step}: {found} {theta}");
        }
    }
}

#[test]
fn lion_is_burns_to_the_bit() {
    for (beta_1, beta_2, decay) in [(0.9, 0.99, 0.0), (0.95, 0.98, 1.0), (0.0, 0.0, 0.1)] {
        let ours = Lion::new().betas(beta_1, beta_2).weight_decay(decay);
        let config = LionConfig::new().with_beta_1(beta_1).with_beta_2(beta_2);
        same_as_burns(&ours, &config.with_weight_decay(decay).build(), &format!("{ours:?}"));
    }
}

#[test]
fn sgd_is_burns_to_the_bit() {
    for (decay, momentum, dampening, nesterov) in [
        (0.0, 0.0, 0.0, false),
        (0.1, 0.0, 0.0, true),
        (0.0, 0.9, 0.0, false),
        (0.1, 0.9, 0.1, false),
        (0.01, 0.95, 0.3, true),
    ] {
        let ours = Sgd::new().weight_decay(decay).momentum(momentum as f32);
        let ours = ours.dampening(dampening).nesterov(nesterov);
        same_as_burns(&ours, &burns_sgd(decay, momentum, dampening, nesterov), &format!("{ours:?}"));
    }
}

/// The defaults of the papers and of torch.
#[test]
fn defaults_are_what_the_docs_say() {
    assert_eq!(AdamW::default(), AdamW::new().betas(0.9, 0.999).epsilon(1e-8).weight_decay(0.0));
    assert_eq!(Lion::default(), Lion::new().betas(0.9, 0.99).weight_decay(0.0));
    assert_eq!(Sgd::default(), Sgd::new().momentum(0.0).dampening(0.0).nesterov(false).weight_decay(0.0));
}

#[derive(Module, Debug)]
struct Net {
    hidden: Linear,
    head: Linear,
}

/// Returns the same net each time, with its own memory and the same ids.
fn net() -> Net {
    let device = Device::flex().autodiff();
    let linear = |from: usize, to: usize, id: u64| {
        let values = numbers(from * to, id as usize).into_iter().map(|x| x.clamp(-0.5, 0.5)).collect();
        let weight = Tensor::from_inner(vector(values)).reshape([from, to]).detach();
        let bias = Tensor::zeros([to], &device);
        Linear {
            weight: Param::initialized(ParamId::from(id), weight.require_grad()),
            bias: Some(Param::initialized(ParamId::from(id + 1), bias.require_grad())),
        }
    };
    Net { hidden: linear(37, 150, 1), head: linear(150, 3, 3) }
}

fn gradients(net: &Net, step: usize) -> GradientsParams {
    let x = Tensor::from_inner(vector(numbers(4 * 37, step))).reshape([4, 37]);
    let y = net.head.forward(net.hidden.forward(x).tanh());
    GradientsParams::from_grads(y.powi_scalar(2).mean().backward(), net)
}

/// Returns whether two nets are equal except for AdamW's rounding. A restarted optimizer is a hundred times farther
/// off.
fn near(a: &Net, b: &Net) -> bool {
    let numbers = |net| parameters(net).concat().into_iter().map(f32::from_bits);
    numbers(a).zip(numbers(b)).all(|(a, b)| (a - b).abs() < 1e-4)
}

fn parameters(net: &Net) -> Vec<Vec<u32>> {
    [&net.hidden, &net.head]
        .into_iter()
        .flat_map(|linear| [bits(&linear.weight.val()), bits(&linear.bias.as_ref().unwrap().val())])
        .collect()
}

fn trained(mut optimizer: ModelOptimizer, steps: std::ops::Range<usize>, net: Net) -> (Net, ModelOptimizer) {
    let step = |net, step| {
        let gradients = gradients(&net, step);
        optimizer.step(1e-2, net, gradients)
    };
    let net = steps.fold(net, step);
    (net, optimizer)
}

/// Has one optimizer update these parameters, and another one all others.
fn in_groups<O: ParamOptimizer>(all: O, some: ParamGroup, of_some: O) -> ModelOptimizer {
    ModelOptimizer::of(vec![
        ParamsOptimizer::new(ParamGroup::all(), 1.0, Fused(all)),
        ParamsOptimizer::new(some, 1.0, Fused(of_some)),
    ])
}

/// Pairs of our and Burn's optimizers, with separate settings for weights and biases.
fn pairs() -> Vec<[ModelOptimizer; 2]> {
    let weights = || ParamGroup::from_ids(vec![ParamId::from(1), ParamId::from(3)]);
    let sgd = |decay| Sgd::new().momentum(0.9).dampening(0.1).weight_decay(decay);
    vec![
        [
            in_groups(AdamW::new(), weights(), AdamW::new().weight_decay(0.1)),
            ModuleOptimizer::from(burns_adamw(0.9, 0.999, 1e-8, 0.0))
                .with_group(weights(), burns_adamw(0.9, 0.999, 1e-8, 0.1), None)
                .into(),
        ],
        [
            in_groups(Lion::new(), weights(), Lion::new().weight_decay(0.1)),
            ModuleOptimizer::from(LionConfig::new().build())
                .with_group(weights(), LionConfig::new().with_weight_decay(0.1).build(), None)
                .into(),
        ],
        [
            in_groups(sgd(0.0), weights(), sgd(0.1)),
            ModuleOptimizer::from(burns_sgd(0.0, 0.9, 0.1, false))
                .with_group(weights(), burns_sgd(0.1, 0.9, 0.1, false), None)
                .into(),
        ],
        [Sgd::new().init().unwrap(), SgdConfig::new().init().into()],
    ]
}

#[test]
fn states_go_from_burns_to_ours_and_back() {
    for (pair, fresh) in pairs().into_iter().zip(pairs()) {
        let [ours, burns] = pair.map(|optimizer| trained(optimizer, 0..5, net()));
        assert!(near(&ours.0, &burns.0));
        assert!(!near(&ours.0, &net()));
        let [our_states, burns_states] =
            [&ours, &burns].map(|(_, optimizer)| optimizer.states(None).unwrap());
        let [of_burns, of_ours] = {
            let [mut ours, mut burns] = fresh;
            ours.load(burns_states, &Device::flex()).unwrap();
            burns.load(our_states, &Device::flex()).unwrap();
            [ours, burns]
        };
        let (went_on, _) = trained(burns.1, 5..9, burns.0);
        let (of_burns, _) = trained(of_burns, 5..9, ours.0.clone());
        let (of_ours, _) = trained(of_ours, 5..9, ours.0);
        assert!(near(&of_burns, &went_on));
        assert!(near(&of_ours, &went_on));
    }
}

/// Returns an optimizer after an update of the net.
fn updated(optimizer: impl Into<ModelOptimizer>) -> ModelOptimizer {
    trained(optimizer.into(), 0..1, net()).1
}

/// A checkpoint of one goes on with the other: the fields have the same names, types and values.
#[test]
fn states_are_those_that_burn_reads_of_the_same_optimizer() {
    let ours = [AdamW::new().init().unwrap(), Sgd::new().momentum(0.9).init().unwrap()];
    let burns = [ModuleOptimizer::from(AdamW::new()), ModuleOptimizer::from(Sgd::new().momentum(0.9))];
    for (ours, burns) in ours.into_iter().zip(burns) {
        let [ours, burns] = [updated(ours), updated(burns)].map(|optimizer| optimizer.states(None).unwrap());
        assert_eq!(ours.len(), 4);
        for ((id, ours), (of, burns)) in ours.into_iter().zip(burns) {
            let sorted = |state: ParamState| {
                let mut tensors = state.tensors;
                tensors.sort_by(|(a, _), (b, _)| a.cmp(b));
                let mut scalars = state.scalars;
                scalars.sort_by(|(a, _), (b, _)| a.cmp(b));
                (state.axes, state.path, tensors, scalars)
            };
            assert_eq!((id, sorted(ours)), (of, sorted(burns)));
        }
    }
}

/// An optimizer whose states tell where they are restored.
#[derive(Clone, Debug)]
struct Telling;

#[derive(Clone, Debug)]
struct Told;

thread_local! {
    /// Where the last state was restored.
    static FOUND: RefCell<Option<Device>> = const { RefCell::new(None) };
}

impl RecordState for Told {
    fn state_flatten(&self, _: &str, _: &mut StateSink) {}

    fn state_unflatten(_: &str, _: &mut StateSource, device: &Device) -> Option<Self> {
        FOUND.set(Some(device.clone()));
        Some(Self)
    }
}

impl Optimizer for Telling {
    type State<const D: usize> = Told;

    fn step<const D: usize>(
        &self,
        _: LearningRate,
        param: Tensor<D>,
        _: Tensor<D>,
        _: Option<Told>,
    ) -> (Tensor<D>, Option<Told>) {
        (param, Some(Told))
    }

    fn to_device<const D: usize>(state: Told, _: &Device) -> Told {
        state
    }
}

#[test]
fn states_are_restored_where_they_are_needed() {
    let of_groups = Groups::default().init(&net(), Telling, |optimizer, _| optimizer).unwrap();
    for optimizer in [ModelOptimizer::of_all(OfBurn(Telling)), of_groups] {
        let mut optimizer = updated(optimizer);
        let states = optimizer.states(None).unwrap();
        // Burn restores on devices without autodiff, so that this one can only be ours.
        optimizer.load(states, &Device::flex().autodiff()).unwrap();
        assert!(FOUND.take().is_some_and(|found| found.is_autodiff()));
    }
}

#[test]
fn one_thread_and_many_agree() {
    let gradients: Vec<_> = (0..4).map(|step| numbers(200_003, step)).collect();
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let all = (AdamW::new().weight_decay(0.1), Lion::new(), Sgd::new().momentum(0.9));
            let all = [
                updates(&all.0, 200_003, &gradients),
                updates(&all.1, 200_003, &gradients),
                updates(&all.2, 200_003, &gradients),
            ];
            all.concat().iter().map(bits).collect::<Vec<_>>()
        })
    };
    let one = with(1);
    assert!(one == with(2) && one == with(5));
}

#[test]
fn other_dtypes_go_to_burns_operations() {
    let wide = |seed| vector(numbers(100, seed)).cast(FloatDType::F64);
    fn three<O: Optimizer>(optimizer: O, wide: impl Fn(usize) -> Tensor<1>) -> TensorData {
        let (mut param, mut state) = (wide(9), None);
        for step in 0..3 {
            // A gradient of another precision is converted to the parameter's.
            let grad = if step == 1 { wide(step).cast(FloatDType::F32) } else { wide(step) };
            (param, state) = optimizer.step(0.1, param, grad.cast(FloatDType::F64), state);
        }
        param.into_data()
    }
    let pair = (AdamW::new().weight_decay(0.1), burns_adamw(0.9, 0.999, 1e-8, 0.1));
    assert_eq!(three(pair.0, wide), three(pair.1, wide));
    assert_eq!(three(Lion::new(), wide), three(LionConfig::new().build(), wide));
    for (momentum, dampening, nesterov) in [(0.0, 0.0, false), (0.9, 0.1, false), (0.9, 0.1, true)] {
        // Burn stores the factor of the momentum in f32.
        let ours = Sgd::new().momentum(momentum as f32).dampening(dampening).nesterov(nesterov);
        let burns = burns_sgd(0.1, momentum, dampening, nesterov);
        assert_eq!(three(ours.weight_decay(0.1), wide), three(burns, wide));
    }
}
