use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use proptest::prelude::*;

use super::rotary;
use crate::device::is_flex;
use crate::testing;

fn waves(shape: [usize; 4], seed: usize, device: &Device) -> Tensor<4> {
    let count: usize = shape.iter().product();
    let values = (0..count).map(|at| (((at + 1) * (seed + 3)) as f32 * 0.618).sin());
    Tensor::from_data(TensorData::new(values.collect::<Vec<_>>(), shape), device)
}

fn values(x: Tensor<4>) -> Vec<f64> {
    x.into_data().iter().collect()
}

/// The rotation as the equation says, in the dtype of `x`.
fn composed(x: Tensor<4>, cos: Tensor<4>, sin: Tensor<4>) -> Tensor<4> {
    let dtype = FloatDType::from(x.dtype());
    let (cos, sin) = (cos.cast(dtype), sin.cast(dtype));
    let half = x.dims()[3] / 2;
    let (one, other) = (x.clone().narrow(3, 0, half), x.narrow(3, half, half));
    let first = one.clone() * cos.clone() - other.clone() * sin.clone();
    Tensor::cat(vec![first, other * cos + one * sin], 3)
}

#[derive(Clone, Copy, Debug)]
struct Case {
    /// Batch, heads, length and half of the size.
    shape: [usize; 4],
    /// Whether each row of the batch has angles of its own.
    own: bool,
    /// 0: plain, 1: heads of a projection, 2: a view whose rows are not whole.
    view: usize,
}

impl Case {
    /// The rotated tensor and the gradient.
    fn run(
        self,
        coarse: FloatDType,
        dtype: FloatDType,
        device: &Device,
        of: fn(Tensor<4>, Tensor<4>, Tensor<4>) -> Tensor<4>,
    ) -> [Vec<f64>; 2] {
        let [batch, heads, length, half] = self.shape;
        let angles = waves([if self.own { batch } else { 1 }, 1, length, half], 5, device) * 3.0;
        let base = match self.view {
            1 => [batch, length, heads, 2 * half],
            2 => [batch, heads, 2 * half, length],
            _ => [batch, heads, length, 2 * half],
        };
        let leaf = waves(base, 1, device).cast(coarse).cast(dtype).require_grad();
        let x = match self.view {
            1 => leaf.clone().swap_dims(1, 2),
            2 => leaf.clone().swap_dims(2, 3),
            _ => leaf.clone(),
        };
        let y = of(x, angles.clone().cos(), angles.sin());
        let weights = waves(y.dims(), 2, device).cast(coarse).cast(dtype);
        let grads = (y.clone() * weights).cast(FloatDType::F32).sum().backward();
        [values(y), values(leaf.grad(&grads).unwrap())]
    }
}

proptest! {
    #![proptest_config(testing::cases(48))]

    #[test]
    fn any_rotation_and_its_gradient_equal_the_equation(
        shape in [1usize..4, 1usize..5, 1usize..20, 1usize..40],
        own: bool,
        view in 0usize..3,
        dtype: prop::sample::Index,
    ) {
        let device = testing::device();
        let dtypes = testing::computed([
            (FloatDType::F32, 1e-6),
            (FloatDType::F16, 2e-3),
            (FloatDType::BF16, 0.02),
            (FloatDType::F64, 1e-6),
        ]);
        let (dtype, near) = *dtype.get(&dtypes);
        let case = Case { shape, own, view };
        let found = case.run(dtype, dtype, &device.autodiff(), rotary);
        let expected = case.run(dtype, FloatDType::F64, &Device::flex().autodiff(), composed);
        for (found, expected) in found.concat().into_iter().zip(expected.concat()) {
            prop_assert!((found - expected).abs() <= near, "{:?}: {} {}", case, found, expected);
        }
    }
}

#[test]
fn each_device_rotates() {
    let device = testing::device().autodiff();
    let case = Case { shape: [2, 3, 5, 4], own: true, view: 1 };
    let [found, expected] =
        [rotary, composed].map(|of| case.run(FloatDType::F32, FloatDType::F32, &device, of));
    for (found, expected) in found.concat().into_iter().zip(expected.concat()) {
        assert!((found - expected).abs() <= 1e-5, "{found} {expected}");
    }
}

/// Each row is computed on its own.
#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let case = Case { shape: [3, 4, 50, 16], own: false, view: 1 };
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| case.run(FloatDType::F32, FloatDType::F32, &Device::flex().autodiff(), rotary))
    };
    let alone = on(1);
    for threads in [2, 3, 8] {
        assert_eq!(on(threads), alone, "{threads} threads");
    }
}

#[test]
fn numbers_that_are_not_finite_and_empty_tensors() {
    let device = testing::device();
    let ones = Tensor::<4>::ones([1, 1, 1, 1], &device);
    let x = Tensor::<4>::from_data([[[[f32::NAN, 2.0]], [[f32::INFINITY, 1.0]], [[1.0, 2.0]]]], &device);
    let y = values(rotary(x, ones.clone() * 0.6, ones * 0.8));
    assert!(y[0].is_nan() && y[1].is_nan());
    assert_eq!(y[2..4], [f64::INFINITY; 2]);
    assert!((y[4] + 1.0).abs() < 1e-6 && (y[5] - 2.0).abs() < 1e-6, "{y:?}");
    if is_flex(&device) {
        let angles = Tensor::<4>::zeros([1, 1, 0, 2], &device);
        assert_eq!(rotary(Tensor::zeros([2, 3, 0, 4], &device), angles.clone(), angles).dims(), [2, 3, 0, 4]);
    }
}

#[test]
#[should_panic(expected = "angles of [1, 1, 2, 4]")]
fn angles_of_another_length_are_refused() {
    let device = Device::flex();
    let angles = Tensor::<4>::ones([1, 1, 3, 2], &device);
    rotary(Tensor::ones([1, 1, 2, 4], &device), angles.clone(), angles);
}
