//! The updates of a model on the device of the tests, launched together, compared with those on the CPU.

use firebrick_kernels::optim::{Together, copies};
use firebrick_world::{is_host, reads};

use std::collections::HashSet;

use super::*;
use crate::testing;

/// Returns 40 layers of odd sizes, so 80 parameters: more than one kernel updates. Some have several parts.
fn layers(device: &Device) -> Vec<Linear> {
    let layer = |at: usize| {
        let (from, to) = (at * at % 97 + 1, at * 7 % 131 + 1);
        let values = numbers(from * to, at).into_iter().map(|x| x.clamp(-0.5, 0.5)).collect::<Vec<_>>();
        let weight = Tensor::from_data(TensorData::new(values, [from, to]), device);
        Linear {
            weight: Param::initialized(ParamId::from(2 * at as u64), weight.require_grad()),
            bias: Some(Param::initialized(
                ParamId::from(2 * at as u64 + 1),
                Tensor::zeros([to], device).require_grad(),
            )),
        }
    };
    (1..41).map(layer).collect()
}

/// Returns gradients that a bf16 and an f16 can hold too, except for a parameter that has none.
fn gradients_of(layers: &[Linear], step: usize, dtype: FloatDType) -> GradientsParams {
    let mut all = GradientsParams::new();
    let device = layers[0].weight.val().device().inner();
    let numbers = |shape: &[usize], seed: usize| {
        let count = shape.iter().product();
        let values: Vec<f32> =
            numbers(count, seed).into_iter().map(|x| (x * 64.0).clamp(-2.0, 2.0).round() / 64.0).collect();
        TensorData::new(values, shape.to_vec())
    };
    for (at, layer) in layers.iter().enumerate().filter(|(at, _)| *at != 5) {
        let weight = numbers(&layer.weight.dims(), 100 * step + at);
        all.register(layer.weight.id, Tensor::<2>::from_data(weight, &device).cast(dtype));
        let bias = layer.bias.as_ref().unwrap();
        let of_bias = numbers(&bias.dims(), 7 * step + at);
        all.register(bias.id, Tensor::<1>::from_data(of_bias, &device).cast(dtype));
    }
    all
}

fn values(layers: &[Linear]) -> Vec<f32> {
    let of = |layer: &Linear| {
        let bias = layer.bias.as_ref().unwrap().val().into_data();
        [layer.weight.val().into_data(), bias].map(|data| data.iter::<f32>().collect::<Vec<_>>()).concat()
    };
    layers.iter().flat_map(of).collect()
}

fn optimizers() -> Vec<ModelOptimizer> {
    let weights = || ParamGroup::from_ids((1..41).map(|at| ParamId::from(2 * at)).collect());
    let with = |optimizer: ModelOptimizer, decaying: ModelOptimizer| [optimizer, decaying];
    let all = [
        with(AdamW::new().init().unwrap(), AdamW::new().betas(0.9, 0.95).weight_decay(0.1).init().unwrap()),
        with(Lion::new().init().unwrap(), Lion::new().weight_decay(0.1).init().unwrap()),
        with(Sgd::new().init().unwrap(), Sgd::new().momentum(0.9).nesterov(true).init().unwrap()),
        with(
            Adagrad::new().init().unwrap(),
            Sgd::new().momentum(0.9).dampening(0.1).weight_decay(0.1).init().unwrap(),
        ),
    ];
    let grouped = in_groups(AdamW::new(), weights(), AdamW::new().weight_decay(0.1));
    all.into_iter().flatten().chain([grouped]).collect()
}

#[test]
fn a_model_is_updated_as_on_the_cpu_whatever_is_launched_together() {
    let device = testing::device().autodiff();
    let halves = [FloatDType::F32, FloatDType::F16, FloatDType::BF16];
    let halves = halves.into_iter().filter(|dtype| device.supports_dtype(*dtype));
    for dtype in halves {
        for optimizer in optimizers() {
            let (mut here, mut there) = (optimizer.clone(), optimizer);
            let mut on_device = layers(&device);
            let mut on_cpu = layers(&Device::flex().autodiff());
            for step in 1..5 {
                let grads = gradients_of(&on_device, step, dtype);
                let before = copies();
                let mut together = Together::new().writing(dtype);
                on_device = here.update(1e-2, on_device, grads, &mut together);
                let written = together.launch().unwrap();
                let grads = gradients_of(&on_cpu, step, FloatDType::F32);
                on_cpu = there.step(1e-2, on_cpu, grads);
                for (found, expected) in values(&on_device).into_iter().zip(values(&on_cpu)) {
                    let apart = (found - expected).abs();
                    // AdamW and Lion divide by numbers that may be rounded otherwise.
                    assert!(apart <= 2e-6 * expected.abs() + 2e-7, "{dtype:?}, {step}: {found} {expected}");
                }
                // The first step copies what stands in padded rows.
                let copied = step == 1 && !testing::is_unpadded();
                assert!(copies() == before || copied, "each tensor is alone");
                if dtype != FloatDType::F32 {
                    assert_eq!(written.len(), 78, "each parameter that has a gradient");
                    assert_eq!(written.params(&on_device).len(), 78);
                    for layer in
                        on_device.iter().enumerate().filter(|(at, _)| *at != 5).map(|(_, layer)| layer)
                    {
                        let replica = written.of(&layer.weight.val()).unwrap();
                        assert_eq!(bits(&replica), bits(&layer.weight.val().inner().cast(dtype)));
                    }
                }
            }
        }
    }
}

#[test]
fn a_model_that_something_else_holds_keeps_its_values() {
    let device = testing::device().autodiff();
    for mut optimizer in optimizers() {
        // In the second step, parameters and moments are alone but for what is held.
        let (mut start, mut alone, mut other) = (layers(&device), layers(&device), optimizer.clone());
        for step in 1..3 {
            let grads = gradients_of(&alone, step, FloatDType::F32);
            alone = other.step(1e-2, alone, grads);
            let (held, before) = (values(&start), copies());
            let grads = gradients_of(&start, step, FloatDType::F32);
            let updated = optimizer.step(1e-2, start.clone(), grads);
            assert_eq!(values(&start), held);
            assert_eq!(values(&updated), values(&alone));
            assert_eq!(copies() - before, 78, "each parameter that has a gradient");
            start = updated;
        }
    }
}

/// What wraps an optimizer may read its results at once.
#[test]
fn an_optimizer_that_is_alone_has_updated_when_it_returns() {
    let device = testing::device();
    let vector = |x: f32| Tensor::<1>::full([5000], x, &device);
    let first = |x: &Tensor<1>| x.clone().narrow(0, 0, 1).into_scalar::<f32>();
    let (param, state) = AdamW::new().step(0.1, vector(1.0), vector(0.5), None);
    let read = first(&param);
    let (param, _) = AdamW::new().step(0.1, param, vector(0.5), state);
    for (found, expected) in [read, first(&param)].into_iter().zip([0.9, 0.8]) {
        assert!((found - expected).abs() < 1e-5, "{found} {expected}");
    }
}

#[test]
fn an_update_that_the_device_refuses_leaves_no_trace() {
    let device = testing::device().autodiff();
    if device == Device::flex().autodiff() {
        return; // Updates on the CPU ask no guard.
    }
    let guard = |number: f32| Tensor::<1>::from_data([number], &device.clone().inner());
    for optimizer in &optimizers() {
        let (mut here, mut there) = (optimizer.clone(), optimizer.clone());
        let (mut model, mut expected) = (layers(&device), layers(&device));
        for step in 1..5 {
            let grads = |layers: &[Linear]| gradients_of(layers, step, FloatDType::F32);
            let given = grads(&expected);
            expected = there.step(1e-2, expected, given);
            let given = grads(&model);
            // The moments of a first update have no values to keep.
            let mut together = Together::new().if_finite((step > 1).then(|| guard(1e30)));
            model = here.update(1e-2, model, given, &mut together);
            together.launch();
            assert_eq!(values(&model), values(&expected), "after step {step}");
            for number in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let other = gradients_of(&model, 10 * step, FloatDType::F32);
                let mut together = Together::new().writing(FloatDType::F16).if_finite(guard(number));
                let refused = here.update(1e-2, model, other, &mut together);
                assert_eq!(together.waiting(), 78, "each parameter that has a gradient");
                let written = together.launch().unwrap();
                assert_eq!(values(&refused), values(&expected), "{number}");
                let (weight, replica) = (refused[0].weight.val(), written.of(&refused[0].weight.val()));
                assert_eq!(bits(&replica.unwrap()), bits(&weight.inner().cast(FloatDType::F16)));
                drop(written);
                here.retract(&params_of(&refused));
                model = refused;
            }
        }
    }
}

/// The parameters that have a gradient.
fn params_of(layers: &[Linear]) -> HashSet<ParamId> {
    let of = |(_, layer): (usize, &Linear)| [layer.weight.id, layer.bias.as_ref().unwrap().id];
    layers.iter().enumerate().filter(|(at, _)| *at != 5).flat_map(of).collect()
}

/// The host's copy is not changed by the updates that follow, and goes on like the original.
#[test]
fn a_state_is_copied_to_the_host_with_one_wait() {
    let device = testing::device().autodiff();
    for mut optimizer in optimizers() {
        let mut model = layers(&device);
        for step in 1..3 {
            let grads = gradients_of(&model, step, FloatDType::F32);
            model = optimizer.step(1e-2, model, grads);
        }
        let (held, before) = (model.clone(), reads());
        let mut copy = optimizer.on_host();
        assert!(reads() - before <= 1 || is_host(&testing::device()), "{}", reads() - before);
        let tensors = |optimizer: &ModelOptimizer| -> Vec<_> {
            optimizer.states(None).unwrap().into_values().flat_map(|state| state.tensors).collect()
        };
        assert!(tensors(&copy) == tensors(&optimizer));
        for step in 3..5 {
            let grads = gradients_of(&model, step, FloatDType::F32);
            model = optimizer.step(1e-2, model, grads);
        }
        let mut again = held;
        for step in 3..5 {
            let grads = gradients_of(&again, step, FloatDType::F32);
            again = copy.step(1e-2, again, grads);
        }
        assert_eq!(values(&again), values(&model));
    }
}
