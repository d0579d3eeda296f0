//! Adafactor, LAMB and the map of 8-bit numbers against other implementations; see `tests/golden/README.md`.

use burn::optim::Optimizer;
use burn::tensor::{Device, Tensor, TensorData};
use firebrick::kernels::optim::dynamic_map;
use firebrick::optim::{Adafactor, Lamb};
use serde::Deserialize;

use crate::support;

#[derive(Deserialize)]
struct Golden {
    adafactor: Vec<Case<AdafactorSettings>>,
    lamb: Vec<Case<LambSettings>>,
    dynamic_map: Maps,
}

#[derive(Deserialize)]
struct Case<S> {
    name: String,
    settings: S,
    rate: f64,
    initial: Values,
    gradients: Vec<Values>,
    after: Vec<After>,
}

#[derive(Deserialize)]
struct Values {
    matrix: Vec<f32>,
    vector: Vec<f32>,
    cube: Vec<f32>,
}

#[derive(Deserialize)]
struct After {
    step: usize,
    #[serde(flatten)]
    values: Values,
}

#[derive(Deserialize)]
struct Maps {
    signed: Vec<f32>,
    unsigned: Vec<f32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AdafactorSettings {
    scale_parameter: bool,
    relative_step: bool,
    #[serde(default)]
    warmup_init: bool,
    #[serde(default)]
    weight_decay: f32,
    beta1: Option<f32>,
    clip_threshold: Option<f32>,
    decay_rate: Option<f64>,
    eps: Option<(f32, f32)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LambSettings {
    betas: (f32, f32),
    eps: f32,
    weight_decay: f32,
    max_coeff: f32,
    min_coeff: f32,
    bias_correction: bool,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../golden/optimizers.json")).unwrap()
}

/// Compares the updates of one parameter with the golden ones, within `allowed` of the largest value.
fn follows<const D: usize, S, O: Optimizer>(
    case: &Case<S>,
    optimizer: &O,
    of: impl Fn(&Values) -> &Vec<f32>,
    shape: [usize; D],
    allowed: f32,
) {
    let device: Device = support::device();
    let tensor =
        |values: &Values| Tensor::<D>::from_data(TensorData::new(of(values).clone(), shape), &device);
    let (mut param, mut state) = (tensor(&case.initial), None);
    let mut compared = 0;
    for (index, gradient) in case.gradients.iter().enumerate() {
        (param, state) = optimizer.step(case.rate, param, tensor(gradient), state);
        let Some(after) = case.after.iter().find(|after| after.step == index + 1) else { continue };
        let found: Vec<f32> = param.clone().into_data().iter().collect();
        let expected = of(&after.values);
        let largest = expected.iter().fold(0f32, |most, value| most.max(value.abs()));
        for (found, expected) in found.into_iter().zip(expected) {
            let place = format!("{}, {D} axes, step {}", case.name, after.step);
            assert!((found - expected).abs() <= allowed * largest, "{place}: {found} {expected}");
            compared += 1;
        }
    }
    assert_eq!(compared, 5 * shape.iter().product::<usize>());
}

fn all_follow<S, O: Optimizer>(case: &Case<S>, optimizer: &O, allowed: f32) {
    follows(case, optimizer, |values| &values.matrix, [3, 4], allowed);
    follows(case, optimizer, |values| &values.vector, [5], allowed);
    follows(case, optimizer, |values| &values.cube, [2, 3, 4], allowed);
}

#[test]
fn adafactor_is_that_of_transformers() {
    let cases = golden().adafactor;
    assert_eq!(cases.len(), 5);
    for case in cases {
        let settings = &case.settings;
        let optimizer = Adafactor::new()
            .scale_parameter(settings.scale_parameter)
            .relative_step(settings.relative_step)
            .warmup_init(settings.warmup_init)
            .weight_decay(settings.weight_decay)
            .clip_threshold(settings.clip_threshold.unwrap_or(1.0))
            .decay_rate(settings.decay_rate.unwrap_or(-0.8));
        let (squares, parameters) = settings.eps.unwrap_or((1e-30, 1e-3));
        let optimizer = optimizer.epsilons(squares, parameters);
        let optimizer = settings.beta1.map_or(optimizer, |beta_1| optimizer.beta_1(beta_1));
        all_follow(&case, &optimizer, 1e-6);
    }
}

#[test]
fn lamb_is_that_of_deepspeed() {
    let cases = golden().lamb;
    assert_eq!(cases.len(), 5);
    for case in cases {
        let LambSettings { betas, eps, weight_decay, max_coeff, min_coeff, bias_correction } = case.settings;
        let optimizer = Lamb::new()
            .betas(betas.0, betas.1)
            .epsilon(eps)
            .weight_decay(weight_decay)
            .coefficients(min_coeff, max_coeff)
            .bias_correction(bias_correction);
        all_follow(&case, &optimizer, 2e-6);
    }
}

#[test]
fn the_values_of_8_bit_moments_are_those_of_bitsandbytes() {
    let Maps { signed, unsigned } = golden().dynamic_map;
    for (found, expected) in [(dynamic_map(true), signed), (dynamic_map(false), unsigned)] {
        assert_eq!(expected.len(), 256);
        for (found, expected) in found.into_iter().zip(expected) {
            // The golden values are computed in f32.
            assert!((found - expected).abs() <= 2.4e-7 * expected.abs(), "{found} {expected}");
        }
    }
}
