//! Half precision compared with f32: gradients, parameters and replicas.

use burn::tensor::{DType, FloatDType, Tensor};
use firebrick_kernels::optim::{copies, replicas};

use super::*;

#[test]
fn half_gradients_are_widened_exactly() {
    for dtype in [FloatDType::BF16, FloatDType::F16] {
        for length in [1, 513, 40_000] {
            let half = |seed| vector(numbers(length, seed)).cast(dtype);
            let (mut narrow, mut wide) =
                ((vector(numbers(length, 9)), None), (vector(numbers(length, 9)), None));
            for step in 0..3 {
                let optimizer = AdamW::new().weight_decay(0.1);
                narrow = optimizer.step(0.1, narrow.0, half(step), narrow.1);
                wide = optimizer.step(0.1, wide.0, half(step).cast(FloatDType::F32), wide.1);
                assert_eq!(bits(&narrow.0), bits(&wide.0));
                assert_eq!(narrow.0.dtype(), DType::F32);
            }
        }
    }
}

/// Parameters and moments in half precision: each update equals that of f32, rounded once.
#[test]
fn half_parameters_are_rounded_once() {
    for dtype in [FloatDType::BF16, FloatDType::F16] {
        let length = 33_000;
        let optimizer = AdamW::new().betas(0.9, 0.95).weight_decay(0.1);
        let round = |x: Tensor<1>| x.cast(dtype).cast(FloatDType::F32);
        // Within the range of f16, even squared.
        let half = |seed| vector(numbers(length, seed)).clamp(-1.0, 1.0).cast(dtype);
        let (mut param, mut state) = (half(9), None);
        let (mut expected, mut moments) = (half(9).cast(FloatDType::F32), None);
        for step in 0..4 {
            (param, state) = optimizer.step(0.1, param, half(step), state);
            let grad = half(step).cast(FloatDType::F32);
            let (next, next_state) = optimizer.step(0.1, expected, grad, moments);
            (expected, moments) = (round(next), next_state);
            if let Some(state) = &mut moments {
                state.momentum.moment_1 = round(state.momentum.moment_1.clone());
                state.momentum.moment_2 = round(state.momentum.moment_2.clone());
            }
            assert_eq!(bits(&param), bits(&expected), "{dtype:?} {step}");
            let momentum = &state.as_ref().unwrap().momentum;
            assert_eq!(FloatDType::from(momentum.moment_1.dtype()), dtype);
            assert_eq!(FloatDType::from(param.dtype()), dtype);
        }
    }
}

#[test]
fn replicas_are_what_a_cast_gives() {
    for dtype in [FloatDType::BF16, FloatDType::F16] {
        let (mut net, mut optimizer) = (net(), AdamW::new().weight_decay(0.1).init().unwrap());
        for step in 0..3 {
            let gradients = gradients(&net, step);
            let (stepped, replicas) = replicas(dtype, || optimizer.step(1e-2, net, gradients));
            net = stepped;
            assert_eq!(replicas.len(), 4);
            for weight in [net.hidden.weight.val(), net.head.weight.val()] {
                let replica = replicas.of(&weight).unwrap();
                assert_eq!(FloatDType::from(replica.dtype()), dtype);
                assert_eq!(bits(&replica), bits(&weight.clone().inner().cast(dtype)));
                // The flat parameter has the flat copy.
                let flat = weight.clone().reshape([-1]);
                assert_eq!(bits(&replicas.of(&flat).unwrap()), bits(&replica));
                // Neither a different tensor with the same values nor another shape matches.
                assert!(replicas.of(&(weight.clone() + 0.0)).is_none());
                assert!(replicas.of(&weight.reshape([1, -1])).is_none());
            }
        }
    }
}

#[test]
fn scopes_of_replicas_nest_and_end() {
    let update = || Sgd::new().step(1.0, vector(vec![1.0; 5]), vector(vec![0.5; 5]), None).0;
    let ((inner, outer_param), outer) =
        replicas(FloatDType::F16, || (replicas(FloatDType::BF16, update), update()));
    assert_eq!((inner.1.len(), outer.len()), (1, 1));
    assert_eq!(outer.of(&outer_param).unwrap().dtype(), FloatDType::F16.into());
    assert!(outer.of(&inner.0).is_none());
    let wide = replicas(FloatDType::F32, update).1;
    assert!(wide.is_empty());

    let caught = std::panic::catch_unwind(|| replicas(FloatDType::F16, || panic!("as a test does")));
    assert!(caught.is_err());
    let before = copies();
    let (param, _) = Sgd::new().step(1.0, update(), vector(vec![0.5; 5]), None);
    assert_eq!((copies(), bits(&param)), (before, bits(&vector(vec![0.0; 5]))));
}
