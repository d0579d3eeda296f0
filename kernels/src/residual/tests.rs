use burn::backend::Flex;
use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use proptest::prelude::*;

use super::{add, add_dropout};
use crate::{Draws, Samples, Site, cast, dropout};

const DTYPES: [FloatDType; 3] = [FloatDType::F32, FloatDType::BF16, FloatDType::F16];

fn site() -> Site<'static> {
    Site { draws: Draws { seed: 3, epoch: 1, first: 5 }, number: 2, samples: &Samples::Columns, from: 0 }
}

fn waves(shape: [usize; 3], seed: usize, dtype: FloatDType, device: &Device) -> Tensor<3> {
    let values: Vec<f32> =
        (0..shape.iter().product()).map(|i: usize| ((i * 3 + seed) as f32 * 0.61).sin()).collect();
    cast(Tensor::from_data(TensorData::new(values, shape), device), dtype)
}

fn values(x: Tensor<3>) -> Vec<f32> {
    x.into_data().iter().collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Sums and gradients are Burn's; the dropped sum is rounded once.
    #[test]
    fn sums_of_any_view_equal_burns(
        (a, b, c) in (1usize..5, 1usize..9, prop_oneof![1usize..20, 250usize..600]),
        dtype in 0usize..3,
        views in prop::array::uniform2(0usize..3),
        tracked in prop::array::uniform2(any::<bool>()),
    ) {
        let (device, dtype) = (Device::flex().autodiff(), DTYPES[dtype]);
        let shape = [a, b, c];
        let leaf = |at: usize| {
            let of = match views[at] {
                0 => [a, b, c],
                1 => [a, c, b],
                _ => [a, b, c + 3],
            };
            let leaf = waves(of, at, dtype, &device);
            if tracked[at] { leaf.require_grad() } else { leaf }
        };
        let view = |at: usize, x: &Tensor<3>| match views[at] {
            0 => x.clone(),
            1 => x.clone().swap_dims(1, 2),
            _ => x.clone().narrow(2, 2, c),
        };
        let leaves = [leaf(0), leaf(1)];
        let [x, y] = [0, 1].map(|at| view(at, &leaves[at]));
        let sum = add(x.clone(), y.clone());
        prop_assert_eq!(values(sum.clone()), values(x.clone() + y.clone()));
        let dropped = add_dropout(x.clone(), y.clone(), 0.25, &[1], site());
        let wide = |x: Tensor<3>| cast(x, FloatDType::F32);
        let expected = wide(x) + dropout(wide(y), 0.25, &[1], site());
        prop_assert_eq!(values(dropped.clone()), values(cast(expected.clone(), dtype)));

        if tracked == [false; 2] {
            return Ok(());
        }
        let weights = waves(shape, 9, dtype, &device);
        let found = (sum * weights.clone() + dropped * weights.clone()).sum().backward();
        let expected = (wide(weights.clone()) * 2.0, dropout(wide(weights.clone()), 0.25, &[1], site()) + wide(weights));
        for (at, expected) in [expected.0, expected.1].into_iter().enumerate() {
            let Some(found) = leaves[at].grad(&found) else {
                prop_assert!(!tracked[at]);
                continue;
            };
            prop_assert!(tracked[at]);
            let found = values(view(at, &found));
            for (found, expected) in found.into_iter().zip(values(expected)) {
                prop_assert!((found - expected).abs() <= 0.02 * expected.abs() + 1e-6, "{} {}", found, expected);
            }
        }
    }
}

#[test]
fn a_sum_takes_the_place_of_an_operand_that_nothing_else_holds() {
    let device = Device::flex();
    let address = |x: &Tensor<3>| {
        let x = x.clone().try_into_primitive::<Flex>().unwrap();
        x.storage::<f32>().as_ptr().addr()
    };
    let [x, y] = [1, 2].map(|seed| waves([2, 30, 40], seed, FloatDType::F32, &device));
    let (of_x, of_y) = (address(&x), address(&y));
    let sum = add(x.clone(), y);
    assert_eq!(address(&sum), of_y);
    let other = add(x.clone(), x.clone());
    assert!(![of_x, of_y].contains(&address(&other)), "x is still held");
    let sum = add(sum, x);
    assert!([of_x, of_y].contains(&address(&sum)));
}

#[test]
fn shapes_that_differ_are_broadcast_and_empty_ones_stay_empty() {
    let device = Device::flex();
    let [x, y] = [[2, 3, 4], [1, 3, 4]].map(|shape| waves(shape, 1, FloatDType::F32, &device));
    assert_eq!(values(add(x.clone(), y.clone())), values(x.clone() + y.clone()));
    let dropped = add_dropout(x.clone(), y.clone(), 0.5, &[1], site());
    assert_eq!(values(dropped), values(x + dropout(y, 0.5, &[1], site())));
    let none = Tensor::<3>::zeros([0, 3, 4], &device);
    assert_eq!(add_dropout(none.clone(), none, 0.5, &[1], site()).dims(), [0, 3, 4]);
}
