//! AdamW and the schedules compared with torch; see `tests/golden/README.md`.

use crate::support;
use burn::module::{Module, Param};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Tensor};
use firebrick::Schedule;
use firebrick::optim::{AdamW, Groups, ModelOptimizer};
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    optimizers: Vec<Case>,
    schedules: Vec<Rates>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    beta1: f32,
    beta2: f32,
    eps: f32,
    decay_matrix: f32,
    decay_vector: f32,
    rates: Vec<f64>,
    initial: Pair,
    gradients: Vec<Pair>,
    after: Vec<After>,
}

#[derive(Deserialize)]
struct Pair {
    matrix: Vec<f32>,
    vector: Vec<f32>,
}

#[derive(Deserialize)]
struct After {
    step: usize,
    matrix: Vec<f32>,
    vector: Vec<f32>,
}

#[derive(Deserialize)]
struct Rates {
    kind: String,
    total: u64,
    warmup: u64,
    peak: f64,
    floor: f64,
    rates: Vec<f64>,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../golden/adamw.json")).unwrap()
}

#[derive(Module, Debug)]
struct Parameters {
    matrix: Param<Tensor<2>>,
    vector: Param<Tensor<1>>,
}

fn matrix(values: &[f32], device: &Device) -> Tensor<2> {
    Tensor::<1>::from_data(values, device).reshape([3, 4])
}

/// Returns the optimizer as a run file builds it if only matrices decay; if all parameters or none decay, ours and Burn's own.
fn optimizers(case: &Case, model: &Parameters) -> Vec<ModelOptimizer> {
    if case.decay_vector == 0.0 {
        let recipe =
            AdamW { betas: (case.beta1, case.beta2), epsilon: case.eps, weight_decay: case.decay_matrix };
        return vec![Groups::new().build(model, &recipe).unwrap()];
    }
    assert_eq!(case.decay_vector, case.decay_matrix);
    let config = AdamWConfig::new().with_beta_1(case.beta1).with_beta_2(case.beta2);
    let burns = config.with_epsilon(case.eps).with_weight_decay(case.decay_matrix).init();
    let ours = AdamW::new().betas(case.beta1, case.beta2).epsilon(case.eps);
    vec![ours.weight_decay(case.decay_matrix).init().unwrap(), burns.into()]
}

fn initial(case: &Case, device: &Device) -> Parameters {
    let autodiff = device.clone().autodiff();
    Parameters {
        matrix: Param::from_tensor(matrix(&case.initial.matrix, &autodiff)),
        vector: Param::from_tensor(Tensor::from_data(case.initial.vector.as_slice(), &autodiff)),
    }
}

#[test]
fn adamw_is_torchs_to_1e_6_over_20_steps() {
    let device = support::device(); // of the gradients
    for case in golden().optimizers {
        for which in 0..optimizers(&case, &initial(&case, &device)).len() {
            let mut model = initial(&case, &device);
            let mut optimizer = optimizers(&case, &model).remove(which);
            let mut compared = 0;
            for (index, gradient) in case.gradients.iter().enumerate() {
                let mut grads = GradientsParams::new();
                grads.register(model.matrix.id, matrix(&gradient.matrix, &device));
                grads.register(model.vector.id, Tensor::<1>::from_data(gradient.vector.as_slice(), &device));
                model = optimizer.step(case.rates[index], model, grads);
                let Some(after) = case.after.iter().find(|after| after.step == index + 1) else {
                    continue;
                };
                let mut found: Vec<f32> = model.matrix.val().into_data().iter().collect();
                found.extend(model.vector.val().into_data().iter::<f32>());
                let expected = after.matrix.iter().chain(&after.vector);
                for (found, expected) in found.into_iter().zip(expected) {
                    let allowed = 1e-6 * expected.abs().max(1.0);
                    let place = format!("{}, optimizer {which}, step {}", case.name, after.step);
                    assert!((found - expected).abs() <= allowed, "{place}: {found} {expected}");
                    compared += 1;
                }
            }
            assert_eq!(compared, 5 * 17);
        }
    }
}

#[test]
fn schedules_are_torchs_to_1e_6() {
    let schedules = golden().schedules;
    assert_eq!(schedules.len(), 10);
    for golden in schedules {
        let schedule = match golden.kind.as_str() {
            "constant" => Schedule::constant(golden.peak),
            "linear" => Schedule::linear(golden.peak),
            _ => Schedule::cosine(golden.peak),
        };
        let schedule = schedule.min_lr(golden.floor).warmup(golden.warmup);
        assert_eq!(golden.rates.len() as u64, golden.total);
        for (update, expected) in golden.rates.iter().enumerate() {
            let found = schedule.rate(update as u64, golden.total);
            assert!(
                (found - expected).abs() <= 1e-6 * golden.peak,
                "{schedule:?} update {update}: {found} {expected}"
            );
        }
    }
}
