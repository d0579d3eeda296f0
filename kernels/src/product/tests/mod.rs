//! Products and gradients beside Burn's in f32.

mod on_device;
mod operands;
mod shapes;

use burn::backend::Flex;
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};
use proptest::prelude::*;

use super::{linear, matmul};
use crate::cast;
use crate::with_zero_results;

const HALF: [FloatDType; 2] = [FloatDType::BF16, FloatDType::F16];

/// Distance from 1 to the next number.
fn epsilon(dtype: FloatDType) -> f64 {
    match dtype {
        FloatDType::BF16 => 2f64.powi(-7),
        FloatDType::F16 => 2f64.powi(-10),
        _ => f64::from(f32::EPSILON),
    }
}

/// Numbers between -1 and 1 that `dtype` represents exactly, different for each seed.
fn waves<const D: usize>(shape: [usize; D], seed: usize, dtype: FloatDType, device: &Device) -> Tensor<D> {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|i| ((i * 7 + seed * 31) as f32 * 0.37).sin()).collect();
    Tensor::<D>::from_data(TensorData::new(values, shape), device).cast(dtype)
}

fn values<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().iter().collect()
}

/// Asserts that each number of `found` is that of `expected`, rounded once; sums of up to 1000 products of numbers
/// below 1 may differ by their order.
fn assert_rounded(found: Vec<f32>, expected: Vec<f32>, dtype: FloatDType) {
    assert_eq!(found.len(), expected.len());
    for (at, (&found, &expected)) in found.iter().zip(&expected).enumerate() {
        let (found, expected) = (f64::from(found), f64::from(expected));
        let allowed = 0.51 * epsilon(dtype) * expected.abs() + 1e-4;
        assert!((found - expected).abs() <= allowed, "{found} {expected} at {at}");
    }
}

/// Returns the sum of `y` times weights that are exact in half precision, so that the gradient of `y` is not rounded
/// either.
fn weighed<const D: usize>(y: Tensor<D>) -> Tensor<1> {
    let weights = waves(y.dims(), 5, FloatDType::from(y.dtype()), &y.device());
    cast(y, FloatDType::F32).mul(weights.cast(FloatDType::F32)).sum()
}

type View = fn(Tensor<4>) -> Tensor<4>;

/// Compares the product and gradients of operands under `views` with Burn's in f32.
fn check_matmul(lhs: [usize; 4], rhs: [usize; 4], views: [View; 2], dtype: FloatDType) {
    let device = Device::flex().autodiff();
    let leaves = || {
        let lhs = waves(lhs, 1, dtype, &device).require_grad();
        (lhs, waves(rhs, 2, dtype, &device).require_grad())
    };
    let (a, b) = leaves();
    let y = matmul(views[0](a.clone()), views[1](b.clone()));
    assert_eq!(FloatDType::from(y.dtype()), dtype);
    let grads = weighed(y.clone()).backward();

    let (of_a, of_b) = leaves();
    let wide = |x: &Tensor<4>, view: View| view(x.clone()).cast(FloatDType::F32);
    let expected = wide(&of_a, views[0]).matmul(wide(&of_b, views[1]));
    assert_rounded(values(y.clone()), values(expected.clone()), dtype);
    let weights = waves(y.dims(), 5, dtype, &device).cast(FloatDType::F32);
    let expected = (expected * weights).sum().backward();
    for (leaf, reference) in [(a, of_a), (b, of_b)] {
        let found = leaf.grad(&grads).unwrap();
        assert_eq!(FloatDType::from(found.dtype()), dtype);
        // The reference rounds its gradient at the cast: both are one rounding away from the exact value.
        let reference = values(reference.grad(&expected).unwrap());
        for (found, reference) in values(found).into_iter().zip(reference) {
            let allowed = 1.01 * epsilon(dtype) * f64::from(reference.abs()) + 1e-4;
            assert!(f64::from(found - reference).abs() <= allowed, "{found} {reference}");
        }
    }
}

fn plain(x: Tensor<4>) -> Tensor<4> {
    x
}

fn transposed(x: Tensor<4>) -> Tensor<4> {
    x.transpose()
}

/// An inner block of rows and columns.
fn inner(x: Tensor<4>) -> Tensor<4> {
    let [_, _, m, n] = x.dims();
    x.narrow(2, 1, m - 2).narrow(3, 2, n - 3)
}

fn backwards(x: Tensor<4>) -> Tensor<4> {
    x.flip([3])
}

#[test]
fn products_and_gradients_equal_those_in_f32() {
    for dtype in HALF {
        for (lhs, rhs) in [
            ([1, 1, 1, 1], [1, 1, 1, 1]),
            ([1, 1, 1, 5], [1, 1, 5, 3]),
            ([1, 1, 7, 1], [1, 1, 1, 9]),
            ([2, 3, 5, 7], [2, 3, 7, 11]),
            ([2, 3, 5, 7], [1, 1, 7, 11]),
            ([1, 3, 5, 7], [2, 1, 7, 11]),
            ([1, 1, 201, 67], [1, 1, 67, 190]),
            ([4, 2, 33, 64], [4, 2, 64, 65]),
        ] {
            check_matmul(lhs, rhs, [plain, plain], dtype);
        }
        check_matmul([2, 3, 7, 5], [2, 3, 11, 7], [transposed, transposed], dtype);
        check_matmul([2, 3, 9, 20], [2, 3, 19, 14], [inner, inner], dtype);
        check_matmul([2, 3, 9, 20], [1, 3, 12, 20], [inner, |x| transposed(inner(x))], dtype);
        check_matmul([2, 3, 5, 7], [2, 3, 7, 11], [backwards, backwards], dtype);
        check_matmul([2, 1, 5, 7], [1, 3, 7, 11], [|x| x.expand([2, 3, 5, 7]), plain], dtype);
        // Like attention, which slices heads out of one projection.
        let heads = |x: Tensor<4>| x.narrow(3, 16, 16).swap_dims(1, 2);
        check_matmul([2, 12, 3, 48], [2, 12, 3, 48], [heads, |x| heads_transposed(x)], dtype);
    }
}

fn heads_transposed(x: Tensor<4>) -> Tensor<4> {
    x.narrow(3, 32, 16).swap_dims(1, 2).transpose()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn products_of_any_size_equal_those_in_f32(
        [b, h, m, k, n] in prop::array::uniform5(1usize..20),
        broadcast: [bool; 4],
        half: bool,
    ) {
        let [lhs_b, lhs_h, rhs_b, rhs_h] =
            [(b, 0), (h, 1), (b, 2), (h, 3)].map(|(size, at)| if broadcast[at] { 1 } else { size });
        check_matmul([lhs_b, lhs_h, m, k], [rhs_b, rhs_h, k, n], [plain, plain], HALF[usize::from(half)]);
    }

}

#[test]
fn an_affine_map_and_its_gradients_equal_those_in_f32() {
    let device = Device::flex().autodiff();
    for dtype in HALF {
        let x = waves([2, 9, 13], 1, dtype, &device).require_grad();
        let weight = waves([13, 6], 2, dtype, &device).require_grad();
        let bias = waves([6], 3, dtype, &device).require_grad();
        let y = linear(x.clone(), weight.clone(), Some(bias.clone()));
        let grads = weighed(y.clone()).backward();

        let wide = |x: Tensor<2>| x.inner().cast(FloatDType::F32);
        let rows = wide(x.clone().reshape([18, 13]));
        let expected = rows.clone().matmul(wide(weight.clone())) + wide(bias.clone().unsqueeze());
        assert_rounded(values(y), values(expected), dtype);
        let grad = waves([18, 6], 5, dtype, &device.clone().inner()).cast(FloatDType::F32);
        let of_x = grad.clone().matmul(wide(weight.clone()).transpose());
        assert_rounded(values(x.grad(&grads).unwrap()), values(of_x), dtype);
        let of_weight = rows.transpose().matmul(grad.clone());
        assert_rounded(values(weight.grad(&grads).unwrap()), values(of_weight), dtype);
        assert_rounded(values(bias.grad(&grads).unwrap()), values(grad.sum_dim(0)), dtype);

        let one = waves([13], 1, dtype, &device.clone().inner());
        let y = linear(one.clone(), weight.clone().inner(), None);
        let expected = wide_row(one).matmul(wide(weight));
        assert_rounded(values(y), values(expected), dtype);
    }
}

fn wide_row(x: Tensor<1>) -> Tensor<2> {
    x.cast(FloatDType::F32).unsqueeze()
}

/// 4096 gradients of 1 sum to 4096; a sum in bf16 stops at 256.
#[test]
fn the_gradient_of_a_bias_is_summed_in_f32() {
    let device = Device::flex().autodiff();
    let x = waves([4096, 2], 1, FloatDType::BF16, &device);
    let weight = waves([2, 3], 2, FloatDType::BF16, &device);
    let bias = waves([3], 3, FloatDType::BF16, &device).require_grad();
    let y = linear(x, weight, Some(bias.clone()));
    let grads = cast(y, FloatDType::F32).sum().backward();
    assert_eq!(values(bias.grad(&grads).unwrap()), [4096.0; 3]);
}

#[test]
fn a_frozen_operand_has_no_gradient_and_the_others_keep_theirs() {
    let device = Device::flex().autodiff();
    let dtype = FloatDType::BF16;
    let gradients = |tracked: [bool; 3]| {
        let x = waves([5, 4], 1, dtype, &device).set_require_grad(tracked[0]);
        let weight = waves([4, 3], 2, dtype, &device).set_require_grad(tracked[1]);
        let bias = waves([3], 3, dtype, &device).set_require_grad(tracked[2]);
        let y = linear(x.clone(), weight.clone(), Some(bias.clone()));
        let y = y + matmul(x.clone(), weight.clone());
        let grads = weighed(y).backward();
        [x.grad(&grads).map(values), weight.grad(&grads).map(values), bias.grad(&grads).map(values)]
    };
    let all = gradients([true; 3]);
    assert!(all.iter().all(Option::is_some));
    for bits in 1..7 {
        let tracked = [bits & 1 > 0, bits & 2 > 0, bits & 4 > 0];
        let found = gradients(tracked);
        for ((found, all), tracked) in found.into_iter().zip(&all).zip(tracked) {
            assert_eq!(found, if tracked { all.clone() } else { None });
        }
    }
}

/// The backward pass keeps the operand itself, in half precision, and keeps no operand that it does not read.
#[test]
fn operands_are_kept_only_if_a_gradient_needs_them() {
    let device = Device::flex().autodiff();
    let leaf = |seed, tracked| waves([8, 8], seed, FloatDType::BF16, &device).set_require_grad(tracked);
    for (own, affine) in [(true, true), (true, false), (false, false)] {
        for weight_tracked in [true, false] {
            let x = leaf(1, true) + 1.0;
            let handle = x.clone().inner().try_into_primitive::<Flex>().unwrap();
            let bias = affine.then(|| waves([8], 3, FloatDType::BF16, &device));
            let weight = leaf(2, weight_tracked);
            let y = if own { linear(x, weight, bias) } else { matmul(x, weight) };
            assert_eq!(!handle.is_unique(), weight_tracked);
            drop(y);
        }
    }
}

#[test]
fn gradients_are_the_same_when_burn_recomputes_operands() {
    use burn::backend::GradientCheckpointingStrategy::{Balanced, Disabled};
    let device = Device::flex().autodiff();
    let gradients = |strategy| {
        let leaf = |seed| {
            let leaf = waves([6, 6], seed, FloatDType::F16, &device);
            leaf.with_gradient_checkpointing_strategy(strategy).require_grad()
        };
        let (a, b) = (leaf(1), leaf(2));
        let bias = leaf(3).narrow(0, 2, 1).squeeze_dim::<1>(0);
        // Operands that Burn recomputes under its own checkpointing.
        let hidden = linear(a.clone().tanh(), b.clone().exp(), Some(bias));
        let y = matmul(hidden.tanh(), cast(cast(a.clone(), FloatDType::F32).sin(), FloatDType::F16));
        let grads = weighed(y).backward();
        [a, b].map(|leaf| values(leaf.grad(&grads).unwrap()))
    };
    assert_eq!(gradients(Balanced), gradients(Disabled));
}

#[test]
fn non_finite_values_are_preserved() {
    let device = Device::flex();
    for dtype in HALF {
        let x = Tensor::<2>::from_data([[f32::NAN, 1.0], [f32::INFINITY, 1.0], [2.0, 1.0]], &device);
        let y = values(matmul(x.cast(dtype), Tensor::<2>::ones([2, 1], &device).cast(dtype)));
        assert!(y[0].is_nan());
        assert_eq!(y[1..], [f32::INFINITY, 3.0]);
    }
    let device = Device::flex();
    for shape in [[40, 30], [1, 30], [40, 1]] {
        let [rows, cols] = shape;
        let mut from = vec![1.0f32; rows * 50];
        from[7] = f32::NAN;
        if rows > 2 {
            from[51] = f32::NEG_INFINITY;
            from[101] = f32::INFINITY;
            from[102] = f32::NEG_INFINITY;
        }
        let x = Tensor::<2>::from_data(TensorData::new(from, [rows, 50]), &device);
        let y = values(matmul(x, Tensor::<2>::ones([50, cols], &device)));
        for (at, y) in y.into_iter().enumerate() {
            match at / cols {
                0 | 2 => assert!(y.is_nan()),
                1 => assert_eq!(y, f32::NEG_INFINITY),
                _ => assert_eq!(y, 50.0),
            }
        }
    }
    // Exceeds f16 but not f32, which is what loss scaling detects.
    let large = Tensor::<2>::full([1, 2], 60000.0, &device).cast(FloatDType::F16);
    let y = matmul(large, Tensor::<2>::ones([2, 1], &device).cast(FloatDType::F16));
    assert_eq!(values(y), [f32::INFINITY]);
}

#[test]
fn empty_products() {
    let device = Device::flex();
    for dtype in HALF {
        let product = |m, k, n| {
            let none = Tensor::<2>::zeros([m, k], &device).cast(dtype);
            matmul(none, Tensor::<2>::ones([k, n], &device).cast(dtype))
        };
        assert_eq!(product(0, 4, 3).dims(), [0, 3]);
        assert_eq!(product(2, 4, 0).dims(), [2, 0]);
        assert_eq!(values(product(2, 0, 3)), [0.0; 6]);
    }
}

/// Products in f32 of operands in bf16 are those of the operands in f32: nothing is rounded before the sum.
#[test]
fn a_product_of_any_view_is_added_in_place() {
    let device = Device::flex();
    let sizes = [[1, 1, 1], [3, 5, 2], [200, 210, 220], [2, 0, 3], [0, 2, 3], [15, 4099, 33], [9, 8193, 17]];
    for (dtype, [m, k, n]) in
        [FloatDType::F32, FloatDType::BF16].into_iter().flat_map(|dtype| sizes.map(|size| (dtype, size)))
    {
        let waves = |shape: [usize; 2], seed| waves(shape, seed, dtype, &device);
        let operands = [
            (waves([m, k], 1), waves([k, n], 2)),
            (waves([k, m], 1).transpose(), waves([n, k], 2).transpose()),
            (waves([m + 1, k + 2], 1).slice([1..m + 1, 1..k + 1]), waves([k, n], 2).flip([1])),
        ];
        for (lhs, rhs) in operands {
            let total = waves([m, n], 3).cast(FloatDType::F32);
            let of = |x: &Tensor<2>| x.clone().try_into_primitive::<Flex>().unwrap();
            let found = super::add_product(of(&total), of(&lhs), of(&rhs));
            let alone = super::wide_product(of(&lhs), of(&rhs));
            let [found, alone] = [found, alone].map(Tensor::<2>::from_primitive::<Flex>);
            let [lhs, rhs] = [lhs, rhs].map(|x| x.cast(FloatDType::F32));
            let product = if k == 0 { Tensor::zeros([m, n], (&device, DType::F32)) } else { lhs.matmul(rhs) };
            assert_eq!((alone.dtype(), alone.dims()), (DType::F32, [m, n]));
            for (found, expected) in [(found, total + product.clone()), (alone, product)] {
                let apart = values((found - expected).abs());
                let near = 1e-4 + 1e-7 * k as f32;
                assert!(apart.iter().all(|apart| *apart < near), "{dtype:?} {m} {k} {n}");
            }
        }
    }
}

#[test]
fn within_their_scope_products_are_zeros_of_the_same_shape_and_dtype() {
    let device = Device::flex();
    let autodiff = device.clone().autodiff();
    for dtype in [FloatDType::F32, FloatDType::BF16, FloatDType::F16] {
        for [m, k, n] in [[1, 3, 2], [5, 1, 1], [64, 65, 66]] {
            let [x, weight] = [waves::<2>([m, k], 1, dtype, &autodiff), waves([k, n], 2, dtype, &autodiff)]
                .map(Tensor::require_grad);
            let bias = waves::<1>([n], 3, dtype, &autodiff).require_grad();
            let all = || {
                let y = linear(x.clone(), weight.clone(), Some(bias.clone()));
                let grads = matmul(y.clone(), weight.clone().transpose()).sum().backward();
                [y.inner(), x.grad(&grads).unwrap(), weight.grad(&grads).unwrap()]
            };
            let (zeros, computed) = (with_zero_results(all), all());
            for (zeros, computed) in zeros.into_iter().zip(computed) {
                assert_eq!((zeros.dims(), zeros.dtype()), (computed.dims(), computed.dtype()));
                assert!(values(zeros).iter().all(|value| *value == 0.0), "{dtype:?} {m} {k} {n}");
                assert!(values(computed).iter().any(|value| *value != 0.0), "{dtype:?} {m} {k} {n}");
            }
            if dtype != FloatDType::F16 {
                let of = |x: Tensor<2>| x.try_into_primitive::<Flex>().unwrap();
                let [lhs, rhs] = [x.clone(), weight.clone()].map(|x| x.inner());
                let total = waves::<2>([m, n], 4, FloatDType::F32, &device);
                let [sum, alone] = with_zero_results(|| {
                    let (lhs, rhs) = (of(lhs), of(rhs));
                    [
                        super::add_product(of(total.clone()), lhs.clone(), rhs.clone()),
                        super::wide_product(lhs, rhs),
                    ]
                })
                .map(Tensor::<2>::from_primitive::<Flex>);
                assert_eq!(values(sum), values(total));
                assert_eq!(values(alone), vec![0.0; m * n]);
            }
        }
    }
}
