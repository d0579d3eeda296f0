//! Attention in tiles on NVIDIA's GPUs, against f64: shapes that no tile divides, and tensors where a model leaves them.

use burn::backend::{CubeDevice, DispatchDevice};
use burn::tensor::{Device, Distribution, FloatDType, Tensor};
use proptest::prelude::*;

use super::{ALL, Case, assert_close, composed, results};
use crate::attention::{Attending, Reads, attention, attention_of_joint};
use crate::testing;

/// The device, if the kernels are for it.
fn device() -> Option<Device> {
    let device = testing::device();
    let is_cuda = matches!(device.as_dispatch(), DispatchDevice::Cube(CubeDevice::Cuda(_)));
    is_cuda.then(|| device.autodiff())
}

const NEAR: [(FloatDType, f64); 2] = [(FloatDType::BF16, 2e-2), (FloatDType::F16, 3e-3)];

fn cases() -> impl Strategy<Value = Case> {
    let length = || prop_oneof![1usize..20, 60usize..70, 120usize..300];
    let shape = (1usize..3, 1usize..4, 1usize..4, length(), length());
    let size = prop_oneof![Just(32usize), Just(64), Just(96), Just(128)];
    let bounds = prop::collection::vec(any::<[u8; 2]>(), 1..40);
    (shape, size, 0usize..3, any::<bool>(), bounds).prop_map(
        |((batch, key_heads, group, length, read), size, reads, alike, bounds)| Case {
            key_heads,
            group,
            // Each query reads the keys up to its own if there is one for each, any range, or everything.
            read: if reads == 0 { length } else { read },
            bounds: [Vec::new(), bounds, vec![[0, 255]]][reads].clone(),
            rows: if alike { 1 } else { batch },
            ..Case::plain([batch, 1, length, size])
        },
    )
}

proptest! {
    #![proptest_config(testing::cases(48))]

    #[test]
    fn tiles_compute_what_the_composed_one_does(case in cases()) {
        let Some(device) = device() else { return Ok(()) };
        let expected = results(&case, composed, FloatDType::F64, ALL, &Device::flex().autodiff());
        for (dtype, near) in NEAR {
            let found = results(&case, attention, dtype, ALL, &device);
            assert_close(&case, &found, &expected, near);
            prop_assert_eq!(&results(&case, attention, dtype, ALL, &device), &found, "two runs");
        }
    }
}

/// Rows that are padded on the left, and packed samples: tiles of keys that no query of a tile reads are passed over.
#[test]
fn tiles_that_no_query_reads_are_passed_over() {
    let Some(device) = device() else { return };
    let packed = |row: usize, query: usize| {
        let start =
            [0, 30, 131, 200][..4 - row].iter().rev().find(|start| **start <= query).copied().unwrap_or(0);
        [start, query + 1]
    };
    let (length, rows) = (260, 2);
    for window in [usize::MAX, 20] {
        let reads = Reads::new([rows, length, length], |row, query| {
            let [start, end] = packed(row, query);
            start.max(end.saturating_sub(window))..end
        });
        let inputs = |device: &Device, dtype| {
            let wave = |seed: f32| {
                let at = Tensor::<1, burn::tensor::Int>::arange(0..(rows * 2 * length * 64) as i64, device);
                let wave = (at.float() * seed).sin().reshape([rows, 2, length, 64]);
                // What a dtype cannot hold is the same on both sides.
                wave.cast(FloatDType::BF16).cast(dtype).require_grad()
            };
            [wave(0.37), wave(0.73), wave(1.31)]
        };
        let run = |device: &Device, dtype| {
            let [query, key, value] = inputs(device, dtype);
            let how = Attending { reads: &reads, scale: 0.125, cap: None, dropout: None };
            let y = attention(query.clone(), key.clone(), value.clone(), None, how);
            let grads = (y.clone() * y.clone()).sum().backward();
            let gradient = |x: Tensor<4>| x.grad(&grads).expect("it is tracked").into_data();
            [y.into_data(), gradient(query), gradient(key), gradient(value)]
                .map(|data| data.iter::<f64>().collect::<Vec<_>>())
        };
        let expected = run(&Device::flex().autodiff(), FloatDType::F64);
        for (found, expected) in run(&device, FloatDType::BF16).iter().zip(&expected) {
            let most = expected.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
            let apart = found.iter().zip(expected).fold(0.0, |most: f64, (a, b)| most.max((a - b).abs()));
            assert!(apart <= 2e-2 * most, "{window}: {apart} of {most}");
        }
    }
}

/// In a joint projection, in views of turned, narrowed and repeated tensors, and where a piece of 16 bytes begins elsewhere,
/// as in copies.
#[test]
fn tiles_are_read_where_they_stand() {
    let Some(device) = device() else { return };
    let normal = Distribution::Normal(0.0, 1.0);
    let run = |parts: [Tensor<4>; 3]| {
        let reads = Reads::causal(parts[0].dims()[2]);
        let how = Attending { reads: &reads, scale: 0.2, cap: None, dropout: None };
        let parts = parts.map(|part| part.detach().require_grad());
        let [query, key, value] = parts.clone();
        let y = attention(query, key, value, None, how);
        let grads = (y.clone() * y.clone()).sum().backward();
        (y.into_data(), parts.map(|part| part.grad(&grads).expect("it is tracked").into_data()))
    };
    let copy = |x: &Tensor<4>| Tensor::<4>::from_data(x.clone().into_data(), (&device, x.dtype()));

    let x = Tensor::<4>::random([3, 90, 4, 64], normal, &device).cast(FloatDType::BF16);
    let wide = Tensor::<4>::random([2, 75, 2, 68], normal, &device).cast(FloatDType::BF16);
    let views = [
        x.clone().swap_dims(1, 2),
        x.clone().swap_dims(1, 2).slice([0..3, 0..4, 5..80, 0..64]),
        x.clone().narrow(1, 3, 1).swap_dims(1, 2).expand([3, 4, 70, 64]),
        wide.swap_dims(1, 2).narrow(3, 3, 64),
    ];
    for view in views {
        let of_copies = run([(); 3].map(|()| copy(&view)));
        assert_eq!(run([view.clone(), view.clone(), view]), of_copies);
    }

    let joint = Tensor::<3>::random([2, 70, 3 * 128], normal, &device).cast(FloatDType::F16).require_grad();
    let reads = Reads::causal(70);
    let how = Attending { reads: &reads, scale: 0.2, cap: None, dropout: None };
    let y = attention_of_joint(joint.clone(), 2, how);
    let grads = (y.clone() * y.clone()).sum().backward();
    let of_joint = joint.grad(&grads).expect("it is tracked").into_data();
    let part = |x: Tensor<3>, part| x.narrow(2, part * 128, 128).reshape([2, 70, 2, 64]).swap_dims(1, 2);
    let (expected, gradients) = run([0, 1, 2].map(|at| copy(&part(joint.clone(), at))));
    assert_eq!(y.into_data(), expected);
    let of_joint = Tensor::<3>::from_data(of_joint, (&device, joint.dtype()));
    for (at, gradient) in gradients.into_iter().enumerate() {
        assert_eq!(part(of_joint.clone(), at).into_data(), gradient);
    }
}

#[test]
fn nan_stays_in_its_rows_and_queries_that_read_nothing_give_zeros() {
    let Some(device) = device() else { return };
    let x = Tensor::<4>::random([1, 2, 100, 64], Distribution::Default, &device).cast(FloatDType::BF16);
    for odd in [f32::NAN, f32::INFINITY] {
        let bad = x.clone().slice_fill([0..1, 0..1, 70..71, 0..1], odd);
        let reads = Reads::new([1, 100, 100], |_, query| if query % 9 == 0 { 0..0 } else { 0..query + 1 });
        let how = Attending { reads: &reads, scale: 1.0, cap: None, dropout: None };
        let y: Vec<f32> = attention(bad, x.clone(), x.clone(), None, how).into_data().iter().collect();
        for (at, row) in y.chunks(64).enumerate() {
            assert_eq!(row.iter().all(|value| value.is_nan()), at == 70, "{odd}: {at}: {row:?}");
            assert_eq!(row.iter().all(|value| *value == 0.0), at % 100 % 9 == 0, "{odd}: {at}: {row:?}");
        }
    }
}
