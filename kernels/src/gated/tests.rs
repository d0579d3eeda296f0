use burn::tensor::{Device, FloatDType, Tensor, TensorData, activation};

use super::{Gate, gated};
use crate::{Gelu, cast, gelu, testing};

const FORMS: [Gate; 3] = [Gate::Silu, Gate::Gelu(Gelu::Exact), Gate::Gelu(Gelu::Tanh)];

/// Numbers around 0, and some beyond which the activations have their limits.
fn waves(count: usize, seed: usize) -> Vec<f32> {
    let large = [30.0, -30.0, 100.0, -100.0, 0.0];
    let near = (0..count).map(|i| ((i * 5 + seed) as f32 * 0.61).sin() * (1 + i % 9) as f32);
    large.into_iter().chain(near).take(count).collect()
}

/// The value and both gradients in f64, by Burn's gradients of `active · up`.
fn expected(gate: &Tensor<2>, up: &Tensor<2>, form: Gate) -> [Vec<f64>; 3] {
    let device = Device::flex().autodiff();
    let leaf = |x: &Tensor<2>| {
        let data = x.clone().inner().cast(FloatDType::F64).into_data();
        Tensor::<2>::from_data(data, (&device, burn::tensor::DType::F64)).require_grad()
    };
    let (gate, up) = (leaf(gate), leaf(up));
    let active = match form {
        Gate::Silu => gate.clone() * activation::sigmoid(gate.clone()),
        Gate::Gelu(form) => gelu(gate.clone(), form),
    };
    let y = active * up.clone();
    let grads = y.clone().sum().backward();
    let values = |x: Tensor<2>| x.into_data().iter().collect();
    [values(y), values(gate.grad(&grads).unwrap()), values(up.grad(&grads).unwrap())]
}

fn check(gate: Tensor<2>, up: Tensor<2>, form: Gate, epsilon: f64) {
    let y = gated(gate.clone(), up.clone(), form);
    let grads = cast(y.clone(), FloatDType::F32).sum().backward();
    let values = |x: Tensor<2>| -> Vec<f64> { x.into_data().iter().collect() };
    let found = [values(y), values(gate.grad(&grads).unwrap()), values(up.grad(&grads).unwrap())];
    let size = |x: &Tensor<2>| -> Vec<f64> { x.clone().abs().into_data().iter().collect() };
    let sizes: Vec<f64> =
        size(&gate).iter().zip(size(&up)).map(|(gate, up)| gate.max(1.0) * up.max(1.0)).collect();
    for (found, expected) in found.into_iter().zip(expected(&gate, &up, form)) {
        assert_eq!(found.len(), expected.len());
        for ((found, expected), size) in found.into_iter().zip(expected).zip(&sizes) {
            // The result of 1 - 1 is only exact to the rounding of 1.
            let near = epsilon * expected.abs() + 2e-6 * size;
            assert!((found - expected).abs() <= near, "{form:?}: {found} {expected}");
        }
    }
}

#[test]
fn values_and_gradients_are_those_of_the_product() {
    let device = testing::device().autodiff();
    for form in FORMS {
        for shape in [[1, 1], [3, 7], [2, 256], [5, 1001], [130, 129]] {
            let leaf = |seed| {
                let values = waves(shape[0] * shape[1], seed);
                Tensor::<2>::from_data(TensorData::new(values, shape), &device).require_grad()
            };
            check(leaf(1), leaf(2), form, 1e-6);
        }
    }
}

#[test]
fn half_precision_is_rounded_once_and_views_are_read_where_they_stand() {
    let device = testing::device().autodiff();
    for form in FORMS {
        let halves =
            testing::computed([(FloatDType::BF16, 2f64.powi(-8)), (FloatDType::F16, 2f64.powi(-11))]);
        for (dtype, epsilon) in halves {
            let leaf = |seed| {
                let values = waves(600, seed)[5..].to_vec();
                let x = Tensor::<2>::from_data(TensorData::new(values, [35, 17]), &device);
                cast(x, dtype).require_grad()
            };
            check(leaf(1), leaf(2), form, 1.01 * epsilon);
        }
        // Both projections are halves of one.
        let joint = Tensor::<2>::from_data(TensorData::new(waves(40 * 30, 1), [40, 30]), &device);
        let halves = [0, 15].map(|at| joint.clone().narrow(1, at, 15));
        let copies = halves.clone().map(|half| Tensor::<2>::from_data(half.into_data(), &device));
        let values = |[gate, up]: [Tensor<2>; 2]| gated(gate, up, form).into_data();
        assert_eq!(values(halves), values(copies));
    }
}

#[test]
fn nan_propagates_and_infinities_have_their_limits() {
    let device = testing::device();
    let x = Tensor::<1>::from_data([f32::NAN, f32::INFINITY, 1.0, 1.0], &device);
    let up = Tensor::<1>::from_data([1.0, 1.0, f32::NAN, f32::INFINITY], &device);
    for form in FORMS {
        let y: Vec<f32> = gated(x.clone(), up.clone(), form).into_data().iter().collect();
        assert!(y[0].is_nan() && y[1] == f32::INFINITY && y[2].is_nan() && y[3] == f32::INFINITY, "{y:?}");
    }
}

#[test]
fn frozen_projections_have_no_gradient() {
    let device = Device::flex().autodiff();
    let [gate, up] = [1, 2].map(|seed| Tensor::<1>::from_data(&waves(50, seed)[..], &device));
    let tracked = up.clone().require_grad();
    let grads = gated(gate.clone(), tracked.clone(), Gate::Silu).sum().backward();
    assert!(tracked.grad(&grads).is_some() && gate.grad(&grads).is_none());
    let _ = gated(gate, up, Gate::Silu);
}
