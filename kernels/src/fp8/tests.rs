use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use proptest::prelude::*;
use serde_json::Value;

use super::{Rounding, *};
use crate::testing::{computed, device};
use crate::{cast, linear};

const FORMATS: [(&str, Fp8); 2] = [("e4m3", Fp8::E4m3), ("e5m2", Fp8::E5m2)];

fn golden() -> Value {
    serde_json::from_str(include_str!("../../tests/golden/fp8.json")).unwrap()
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn values<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    cast(x, FloatDType::F32).into_data().iter().collect()
}

/// The dtypes that a device rounds from.
fn dtypes() -> Vec<FloatDType> {
    let all = [(FloatDType::F32, ()), (FloatDType::BF16, ()), (FloatDType::F16, ())];
    computed(all).into_iter().map(|(dtype, ())| dtype).collect()
}

fn rounded(x: &[f32], dtype: FloatDType, format: Fp8, device: &Device) -> Vec<f32> {
    let x = Tensor::<1>::from_data(TensorData::from(x), device);
    values(round_to_fp8(cast(x, dtype), format))
}

/// Each bf16 number between 0 and the largest, in one tensor with it, whose scale is 1.
#[test]
fn numbers_are_cast_as_by_torch() {
    let golden = golden();
    for (name, format) in FORMATS {
        let runs: Vec<Vec<f64>> = serde_json::from_value(golden[name]["runs"].clone()).unwrap();
        let largest = 1.75 * f32::from(format.largest() as u16).exp2();
        let last = (largest.to_bits() >> 16) as u16;
        let of = |bits: u16| {
            let run = runs.partition_point(|run| run[0] <= f64::from(bits)) - 1;
            runs[run][2] as f32
        };
        let x: Vec<f32> = (0..=last).map(|bits| f32::from_bits(u32::from(bits) << 16)).collect();
        let expected: Vec<f32> = (0..=last).map(of).collect();
        assert_eq!(runs.last().unwrap()[2] as f32, largest);
        for dtype in dtypes() {
            // f16 does not hold the smallest ones.
            if dtype != FloatDType::F16 {
                assert_eq!(rounded(&x, dtype, format, &device()), expected, "{name}, {dtype:?}");
            }
            let negative: Vec<f32> = x.iter().map(|x| -x).collect();
            let found = rounded(&negative, FloatDType::F32, format, &device());
            assert!(found.iter().zip(&expected).all(|(found, expected)| -found == *expected), "{name}");
        }
    }
}

#[test]
fn the_scale_is_the_largest_power_of_two_without_overflow() {
    let golden = golden();
    for (name, format) in FORMATS {
        let scales: Vec<[f64; 2]> = serde_json::from_value(golden[name]["scales"].clone()).unwrap();
        for [magnitude, scale] in scales {
            // Beside the largest, numbers of the smallest step: half of one goes to 0, and more than half to one.
            let step = (-f64::from(format.smallest() + format.mantissa())).exp2() / scale;
            let x = [magnitude, step, 0.5 * step, 0.75 * step, 1.5 * step, 2.5 * step].map(|x| x as f32);
            let found = rounded(&x, FloatDType::F32, format, &device());
            let expected = [1.0, 0.0, 1.0, 2.0, 2.0].map(|steps| (steps * step) as f32);
            assert_eq!(found[1..], expected, "{name}, {magnitude}");
        }
    }
}

#[test]
fn the_scale_ends_where_steps_would_leave_the_range_of_f32() {
    for (_, format) in FORMATS {
        let step = f64::from(100 + format.smallest() + format.mantissa()).exp2().recip() as f32;
        let found = rounded(&[step, step / 4.0, 0.0, -0.0], FloatDType::F32, format, &Device::flex());
        assert_eq!(found, [step, 0.0, 0.0, 0.0]);
        let zeros = rounded(&[0.0; 40], FloatDType::F32, format, &device());
        assert_eq!(zeros, [0.0; 40]);
    }
}

#[test]
fn a_tensor_with_a_number_that_is_not_finite_has_no_numbers() {
    for dtype in dtypes() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = vec![1.0; 1000];
            x[777] = bad;
            let found = rounded(&x, dtype, Fp8::E4m3, &device());
            assert!(found.iter().all(|x| x.is_nan()), "{dtype:?}, {bad}");
        }
    }
}

#[test]
fn a_map_and_its_gradients_are_those_of_torchs_casts() {
    let golden = &golden()["map"];
    let [rows, from, to] = serde_json::from_value::<[usize; 3]>(golden["shape"].clone()).unwrap();
    let device = device().autodiff();
    let tensor = |name: &str, shape: [usize; 2], dtype| {
        cast(Tensor::<2>::from_data(TensorData::new(numbers(&golden[name]), shape), &device), dtype)
    };
    for (dtype, bound) in
        computed([(FloatDType::F32, 2e-6), (FloatDType::BF16, 4e-3), (FloatDType::F16, 5e-4)])
    {
        let x = tensor("x", [rows, from], dtype).require_grad();
        let weight = tensor("weight", [from, to], dtype).require_grad();
        let bias = tensor("bias", [1, to], dtype).reshape([to]).detach().require_grad();
        let y = linear_in_fp8(x.clone(), weight.clone(), Some(bias.clone()));
        // f32 products of a GPU round to TF32, which holds 8-bit numbers.
        let close = |name: &str, found: Vec<f32>| {
            let expected = numbers(&golden[name]);
            let most = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
            let off = expected.iter().zip(&found).map(|(a, b)| (a - b).abs() / most).fold(0f32, f32::max);
            assert!(off <= bound, "{name} in {dtype:?}: {off}");
        };
        close("y", values(y.clone()));
        let grads = (y * tensor("grad", [rows, to], dtype)).sum().backward();
        close("of_x", values(x.grad(&grads).unwrap()));
        close("of_weight", values(weight.grad(&grads).unwrap()));
        close("of_bias", values(bias.grad(&grads).unwrap()));
    }
}

proptest! {
    #![proptest_config(crate::testing::cases(64))]

    /// Of any shapes, on the device of the tests, to the bit of a product of rounded operands.
    #[test]
    fn a_map_is_the_product_of_rounded_operands(
        rows in 1usize..70,
        from in 1usize..5,
        to in 1usize..5,
        bias in any::<bool>(),
        seed in 0u32..1000,
    ) {
        let (from, to) = (16 * from, 16 * to);
        let device = device().autodiff();
        let drawn = |number: u32, count: usize| -> Vec<f32> {
            let bits = (0..count as u32).map(|at| (at ^ number.wrapping_mul(77)).wrapping_mul(2_654_435_769) ^ seed);
            bits.map(|bits| (f32::from((bits >> 9) as u16) - 32_768.0) / 20_000.0).collect()
        };
        for dtype in dtypes() {
            let leaf = |number, shape: [usize; 2]| {
                let data = TensorData::new(drawn(number, shape[0] * shape[1]), shape);
                cast(Tensor::<2>::from_data(data, &device), dtype).detach().require_grad()
            };
            let (x, weight, grad) = (leaf(1, [rows, from]), leaf(2, [from, to]), leaf(3, [rows, to]));
            let bias = bias.then(|| leaf(4, [1, to]).reshape([to]).detach().require_grad());
            let y = linear_in_fp8(x.clone(), weight.clone(), bias.clone());
            let grads = (y.clone() * grad.clone().detach()).sum().backward();

            let in_e4m3 = |x: &Tensor<2>| round_to_fp8(x.clone().detach(), Fp8::E4m3);
            let (x8, weight8) = (in_e4m3(&x), in_e4m3(&weight));
            let grad8 = round_to_fp8(grad.clone().detach(), Fp8::E5m2);
            let plain = |x: Tensor<2>| x.inner();
            let expected = linear(plain(x8.clone()), plain(weight8.clone()), bias.clone().map(Tensor::inner));
            let tolerance = if dtype == FloatDType::F32 { 1e-5 } else { 1e-2 };
            let close = |found: Tensor<2>, expected: Tensor<2>| {
                let (found, expected) = (values(found), values(expected));
                let most = expected.iter().fold(1e-6f32, |most, x| most.max(x.abs()));
                found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= tolerance * most)
            };
            prop_assert!(close(plain(y), expected));
            let of_x = crate::matmul(plain(grad8.clone()), plain(weight8).transpose());
            prop_assert!(close(x.grad(&grads).unwrap(), of_x));
            let of_weight = crate::matmul(plain(x8).transpose(), plain(grad8));
            prop_assert!(close(weight.grad(&grads).unwrap(), of_weight));
            if let Some(bias) = bias {
                let of_bias = bias.grad(&grads).unwrap().reshape([1, to]);
                prop_assert!(close(of_bias, plain(grad).sum_dim(0)));
            }
        }
    }
}

/// The rounding of the host, with no step that its formula leaves out: beside a search of all numbers of the format.
#[test]
fn rounding_finds_the_nearest() {
    for (name, format) in FORMATS {
        let runs: Vec<Vec<f64>> = serde_json::from_value(golden()[name]["runs"].clone()).unwrap();
        let grid: Vec<f64> = runs.iter().map(|run| run[2]).collect();
        let rounding = Rounding::of((*grid.last().unwrap() as f32).to_bits(), format);
        for at in 0..20_000 {
            let x = (f64::from(at) / 20_000.0).powi(5) * grid.last().unwrap();
            let found = f64::from(rounding.round(x as f32));
            let x = f64::from(x as f32);
            let nearest = grid.iter().map(|y| (y - x).abs()).fold(f64::INFINITY, f64::min);
            assert_eq!((found - x).abs(), nearest, "{name}: {x}");
        }
    }
}

#[test]
fn the_gradient_of_rounding_is_that_of_its_result() {
    let x = Tensor::<1>::from_data([1.05, -3.3], &device().autodiff()).require_grad();
    let weights = Tensor::from_data([0.37, 5.0], &device().autodiff());
    let grads = (round_to_fp8(x.clone(), Fp8::E4m3) * weights).sum().backward();
    assert_eq!(values(x.grad(&grads).unwrap()), [0.37, 5.0]);
}

#[test]
fn nothing_is_rounded_of_no_rows() {
    let device = Device::flex().autodiff();
    let x = Tensor::<3>::zeros([2, 0, 16], &device).require_grad();
    let weight = Tensor::<2>::ones([16, 32], &device).require_grad();
    let y = linear_in_fp8(x.clone(), weight.clone(), None);
    assert_eq!(y.dims(), [2, 0, 32]);
    let grads = y.sum().backward();
    assert!(values(weight.grad(&grads).unwrap()).iter().all(|x| *x == 0.0));
}

#[test]
#[should_panic(expected = "multiples of 16")]
fn a_weight_that_does_not_fit_is_refused() {
    let device = Device::flex();
    linear_in_fp8(Tensor::<2>::ones([1, 16], &device), Tensor::ones([16, 24], &device), None);
}
