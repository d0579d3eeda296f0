//! Half precision compared with f32: gradients, parameters and replicas.

use burn::tensor::{DType, FloatDType, Tensor};
use firebrick_kernels::optim::{Parts, Together, copies, equations};

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
            let mut together = Together::new().writing(dtype);
            net = optimizer.update(1e-2, net, gradients, &mut together);
            let replicas = together.launch().unwrap();
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
fn replicas_are_of_the_dtype_that_is_asked_for() {
    let rule = equations::Sgd { weight_decay: 0.0, rate: 1.0 };
    let parts = || Parts { param: vector(vec![1.0; 5]), grad: vector(vec![0.5; 5]), moments: Some([]) };
    for (dtype, count) in [(FloatDType::F16, 1), (FloatDType::BF16, 1), (FloatDType::F32, 0)] {
        let mut together = Together::new().writing(dtype);
        let Ok((param, [])) = together.step(&rule, parts()) else { panic!("Flex updates f32") };
        let replicas = together.launch().unwrap();
        assert_eq!(replicas.len(), count);
        assert!(replicas.of(&param).is_none_or(|replica| replica.dtype() == dtype.into()));
        // The copies hold their parameter.
        let before = copies();
        drop(Sgd::new().step(1.0, param, vector(vec![0.5; 5]), None));
        assert_eq!(copies() - before, count as u64);
    }
}
