use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use super::{Gelu, gelu};
use crate::device::is_flex;
use crate::testing;

const FORMS: [Gelu; 2] = [Gelu::Exact, Gelu::Tanh];

/// Numbers around 0, and some so large that a polynomial of them exceeds f32.
fn numbers(count: usize) -> Vec<f32> {
    let large = [30.0, -30.0, 1e9, -1e9, 3e38, -3e38, 0.0, -0.0];
    let near = (0..count).map(|i| (i as f32 * 0.618).sin() * (1 + i % 7) as f32);
    large.into_iter().chain(near).take(count).collect()
}

/// The function and its slope in f64, with the error function that Burn calls on the CPU.
fn expected(x: &[f32], form: Gelu) -> (Vec<f64>, Vec<f64>) {
    let device = Device::flex();
    let x = Tensor::<1>::from_data(TensorData::from(x), &device).cast(FloatDType::F64);
    let (share, density) = match form {
        Gelu::Exact => {
            let bell = (x.clone().powi_scalar(2) * -0.5).exp() / (2.0 * std::f64::consts::PI).sqrt();
            (((x.clone() / 2f64.sqrt()).erf() + 1.0) * 0.5, bell)
        }
        Gelu::Tanh => {
            let near = x.clone().clamp(-50.0, 50.0);
            let scale = (2.0 / std::f64::consts::PI).sqrt();
            let tanh = ((near.clone() + near.clone().powi_scalar(3) * 0.044715) * scale).tanh();
            let inner = (near.powi_scalar(2) * (3.0 * 0.044715) + 1.0) * scale;
            ((tanh.clone() + 1.0) * 0.5, (-tanh.powi_scalar(2) + 1.0) * inner * 0.5)
        }
    };
    let values = |x: Tensor<1>| x.into_data().iter().collect();
    let slope = share.clone() + x.clone() * density;
    (values(x * share), values(slope))
}

fn found(x: &[f32], dtype: FloatDType, form: Gelu, device: &Device) -> (Vec<f64>, Vec<f64>) {
    let x = Tensor::<1>::from_data(TensorData::from(x), device).cast(dtype).require_grad();
    let y = gelu(x.clone(), form);
    assert_eq!(y.dtype(), DType::from(dtype));
    let grads = y.clone().sum().backward();
    (y.into_data().iter().collect(), x.grad(&grads).unwrap().into_data().iter().collect())
}

#[test]
fn values_and_slopes_are_those_of_the_function() {
    let device = testing::device().autodiff();
    for (form, count) in
        FORMS.into_iter().flat_map(|form| [1, 9, 255, 256, 20_001].map(|count| (form, count)))
    {
        let x = numbers(count);
        let ((y, slope), (y_found, slope_found)) =
            (expected(&x, form), found(&x, FloatDType::F32, form, &device));
        for (at, x) in x.iter().enumerate() {
            // The result of 1 - 1 is only exact to the rounding of 1.
            let near = 5e-7 * f64::from(x.abs()).max(1.0);
            assert!((y_found[at] - y[at]).abs() <= near, "{form:?}({x}) = {}, not {}", y_found[at], y[at]);
            let distance = (slope_found[at] - slope[at]).abs();
            assert!(distance <= 2e-6, "{form:?}'({x}) = {}, not {}", slope_found[at], slope[at]);
        }
    }
}

#[test]
fn nan_propagates_and_infinities_have_their_limits() {
    let x = [f32::NAN, f32::INFINITY, 1.0];
    for form in FORMS {
        let (y, slope) = found(&x, FloatDType::F32, form, &testing::device().autodiff());
        assert!(y[0].is_nan() && slope[0].is_nan(), "{form:?} {y:?} {slope:?}");
        assert!(y[1] == f64::INFINITY && !y[2].is_nan(), "{form:?} {y:?}");
    }
}

#[test]
fn narrow_tensors_are_rounded_once_and_wide_ones_stay_wide() {
    let device = testing::device().autodiff();
    let x: Vec<f32> = numbers(600)[8..].iter().map(|x| half::bf16::from_f32(*x).to_f32()).collect();
    for form in FORMS {
        let (y, slope) = expected(&x, form);
        let halves =
            testing::computed([(FloatDType::BF16, 2f64.powi(-8)), (FloatDType::F16, 2f64.powi(-11))]);
        for (dtype, epsilon) in halves {
            let (y_found, slope_found) = found(&x, dtype, form, &device);
            let near = |found: &[f64], expected: &[f64]| {
                let mut both = found.iter().zip(expected);
                both.all(|(found, expected)| {
                    (found - expected).abs() <= 1.01 * epsilon * expected.abs() + 2e-6
                })
            };
            assert!(near(&y_found, &y) && near(&slope_found, &slope), "{form:?} in {dtype:?}");
        }
        // Elsewhere the error function may be an approximation of it.
        if !is_flex(&device) {
            continue;
        }
        let (y_found, slope_found) = found(&x, FloatDType::F64, form, &device);
        let near = |found: &[f64], expected: &[f64]| {
            found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-12)
        };
        assert!(near(&y_found, &y) && near(&slope_found, &slope), "{form:?} in f64");
    }
}

#[test]
fn views_and_recomputed_values_agree() {
    let device = testing::device().autodiff();
    let x = TensorData::new(numbers(6 * 70)[..6 * 70].to_vec(), [6, 70]);
    let slopes = |device: &Device, turn: bool| {
        let x = Tensor::<2>::from_data(x.clone(), device).slice([0..6, 8..70]).require_grad();
        let y = match turn {
            true => gelu(x.clone().transpose(), Gelu::Exact).transpose(),
            false => gelu(x.clone(), Gelu::Exact),
        };
        // The product reads the values in the backward pass.
        let grads = (y.clone() * y.clone()).sum().backward();
        (y.into_data(), x.grad(&grads).unwrap().into_data())
    };
    let plain = slopes(&device, false);
    assert_eq!(slopes(&device, true), plain);
    assert_eq!(slopes(&device.clone().gradient_checkpointing(), false), plain);
    let empty = Tensor::<2>::zeros([0, 3], &device);
    assert_eq!(gelu(empty, Gelu::Exact).dims(), [0, 3]);
}
