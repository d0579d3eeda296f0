use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData, Tolerance};
use proptest::prelude::*;

use super::{NormKind, norm, norm_and_input, norm_of_sum};
use crate::device::is_flex;
use crate::testing;

const LAYER: NormKind = NormKind::Layer { epsilon: 1e-5 };
const RMS: NormKind = NormKind::Rms { epsilon: 1e-5 };

/// Numbers that differ from row to row and are not centered.
fn waves<const D: usize>(shape: [usize; D], seed: usize, dtype: FloatDType, device: &Device) -> Tensor<D> {
    let count: usize = shape.iter().product();
    let values = (0..count).map(|at| (((at + 1) * (seed + 3)) as f32 * 0.618).sin() * 2.0 + 0.3);
    let data = TensorData::new(values.collect::<Vec<_>>(), shape);
    Tensor::<D>::from_data(data, device).cast(dtype)
}

fn values<const D: usize>(x: Tensor<D>) -> Vec<f64> {
    x.into_data().iter().collect()
}

/// Returns the sum, rounded to `coarse`, and the norm, as the equations say.
fn composed(
    x: Tensor<2>,
    y: Option<Tensor<2>>,
    scale: Tensor<1>,
    bias: Option<Tensor<1>>,
    kind: NormKind,
    coarse: FloatDType,
) -> (Tensor<2>, Tensor<2>) {
    let dtype = x.dtype();
    let sum = y.map_or(x.clone(), |y| (x + y).cast(coarse).cast(dtype));
    let (centered, epsilon) = match kind {
        NormKind::Layer { epsilon } => (sum.clone() - sum.clone().mean_dim(1), epsilon),
        NormKind::Rms { epsilon } => (sum.clone(), epsilon),
    };
    let deviation = (centered.clone().square().mean_dim(1) + epsilon).sqrt();
    let normed = centered / deviation * scale.unsqueeze();
    (sum, bias.map_or(normed.clone(), |bias| normed + bias.unsqueeze()))
}

type NormOf = fn(
    Tensor<2>,
    Option<Tensor<2>>,
    Tensor<1>,
    Option<Tensor<1>>,
    NormKind,
    FloatDType,
) -> (Tensor<2>, Tensor<2>);

fn ours(
    x: Tensor<2>,
    y: Option<Tensor<2>>,
    scale: Tensor<1>,
    bias: Option<Tensor<1>>,
    kind: NormKind,
    _: FloatDType,
) -> (Tensor<2>, Tensor<2>) {
    match y {
        Some(y) => norm_of_sum(x, y, scale, bias, kind),
        None => norm_and_input(x, scale, bias, kind),
    }
}

/// How the inputs are made.
#[derive(Clone, Copy, Debug)]
struct Case {
    rows: usize,
    width: usize,
    kind: NormKind,
    sums: bool,
    biased: bool,
    /// 0: plain, 1: transposed, 2: an inner block, 3: one row for all.
    view: usize,
    tracked: [bool; 4],
}

impl Case {
    const PLAIN: Self =
        Self { rows: 3, width: 5, kind: LAYER, sums: true, biased: true, view: 0, tracked: [true; 4] };

    /// Computes in `dtype`, from numbers that `coarse` can hold, and returns the results and the gradients.
    fn run(
        self,
        of: NormOf,
        dtype: FloatDType,
        coarse: FloatDType,
        device: &Device,
    ) -> Vec<Option<Vec<f64>>> {
        let Self { rows, width, kind, sums, biased, view, tracked } = self;
        let base = match view {
            1 => [width, rows],
            2 => [rows + 2, width + 3],
            3 => [1, width],
            _ => [rows, width],
        };
        // The equations round where the kernels must: a sum over rows can cancel all but what rounding left.
        let shown = |x: Tensor<2>| match view {
            1 => x.transpose(),
            2 => x.slice([1..rows + 1, 2..width + 2]),
            3 => x.expand([rows, width]).cast(coarse).cast(dtype),
            _ => x,
        };
        let leaf = |seed, tracked| waves(base, seed, coarse, device).cast(dtype).set_require_grad(tracked);
        let parameter =
            |seed, tracked| waves([width], seed, coarse, device).cast(dtype).set_require_grad(tracked);
        let (x, y) = (leaf(1, tracked[0]), leaf(2, tracked[1]));
        let (scale, bias) = (parameter(3, tracked[2]), parameter(4, tracked[3]));
        let (sum, normed) = of(
            shown(x.clone()),
            sums.then(|| shown(y.clone())),
            scale.clone(),
            biased.then(|| bias.clone()),
            kind,
            coarse,
        );
        assert_eq!((normed.dtype(), normed.dims()), (DType::from(dtype), [rows, width]));
        let weighed = |x: Tensor<2>, seed| x * waves([rows, width], seed, coarse, device).cast(dtype);
        let loss = weighed(normed.clone(), 5) + weighed(sum.clone(), 6);
        let mut found = vec![Some(values(sum)), Some(values(normed))];
        if tracked[0] || tracked[1] && sums || tracked[2] || tracked[3] && biased {
            let loss = match dtype {
                FloatDType::F64 | FloatDType::F32 => loss,
                _ => loss.cast(FloatDType::F32),
            };
            let grads = loss.sum().backward();
            found.extend([x, y].map(|x| x.grad(&grads).map(values)));
            found.extend([scale, bias].map(|x| x.grad(&grads).map(values)));
        }
        found
    }

    /// Asserts that the results in `dtype` equal those of the equations in f64 up to `near` of the largest.
    fn check(self, dtype: FloatDType, near: f64) {
        let found = self.run(ours, dtype, dtype, &testing::device().autodiff());
        let expected = self.run(composed, FloatDType::F64, dtype, &Device::flex().autodiff());
        assert_eq!(found.len(), expected.len());
        for (which, (found, expected)) in found.into_iter().zip(expected).enumerate() {
            assert_eq!(found.is_some(), expected.is_some(), "{which} of {self:?}");
            let (found, expected) = (found.unwrap_or_default(), expected.unwrap_or_default());
            let most = expected.iter().fold(1f64, |most, x| most.max(x.abs()));
            for (found, expected) in found.iter().zip(&expected) {
                assert!((found - expected).abs() <= near * most, "{which} of {self:?}: {found} {expected}");
            }
        }
    }
}

proptest! {
    #![proptest_config(testing::cases(64))]

    #[test]
    fn any_norm_and_its_gradients_equal_the_equations(
        rows in 1usize..40,
        width in 1usize..150,
        rms: bool,
        sums: bool,
        biased: bool,
        view in 0usize..4,
        tracked: [bool; 4],
        dtype: prop::sample::Index,
    ) {
        // Rows of one number or two have a variance near 0, and a gradient that rounding dominates.
        let width = if rms { width } else { width.max(3) };
        let case = Case { rows, width, kind: if rms { RMS } else { LAYER }, sums, biased, view, tracked };
        let dtypes = testing::computed([
            (FloatDType::F32, 1e-4),
            (FloatDType::F64, 1e-10),
            (FloatDType::BF16, 0.03),
            (FloatDType::F16, 4e-3),
        ]);
        let (dtype, near) = *dtype.get(&dtypes);
        case.check(dtype, near);
    }
}

/// More rows than one task takes, and rows wider than a task.
#[test]
fn large_tensors_equal_the_equations() {
    for (rows, width) in [(700, 33), (2, 20_000), (1, 9000)] {
        for kind in [LAYER, RMS] {
            Case { rows, width, kind, ..Case::PLAIN }.check(FloatDType::F32, 1e-4);
        }
    }
}

#[test]
fn one_number_is_its_own_mean() {
    let device = testing::device().autodiff();
    let x = Tensor::<2>::from_data([[2.0], [-3.0]], &device).require_grad();
    let y = norm(x.clone(), Tensor::ones([1], &device), Some(Tensor::ones([1], &device)), LAYER);
    assert_eq!(values(y.clone()), [1.0; 2]);
    assert_eq!(values(x.grad(&y.sum().backward()).unwrap()), [0.0; 2]);
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let case = Case { rows: 513, width: 70, ..Case::PLAIN };
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| case.run(ours, FloatDType::F32, FloatDType::F32, &Device::flex().autodiff()))
    };
    let alone = on(1);
    for threads in [2, 3, 8] {
        assert!(on(threads) == alone, "{threads} threads");
    }
}

#[test]
fn each_device_computes_the_equations() {
    let device = testing::device().autodiff();
    for kind in [LAYER, RMS] {
        for (sums, biased) in [(true, true), (false, false)] {
            let case = Case { rows: 6, width: 40, kind, sums, biased, ..Case::PLAIN };
            let [found, expected] =
                [ours as NormOf, composed].map(|of| case.run(of, FloatDType::F32, FloatDType::F32, &device));
            for (found, expected) in found.into_iter().flatten().zip(expected.into_iter().flatten()) {
                for (found, expected) in found.into_iter().zip(expected) {
                    assert!((found - expected).abs() < 1e-4 * expected.abs().max(10.0), "{found} {expected}");
                }
            }
        }
    }
}

#[test]
fn not_a_number_and_infinity_spoil_their_row_only() {
    let device = testing::device().autodiff();
    for kind in [LAYER, RMS] {
        for spoiled in [f32::NAN, f32::INFINITY] {
            let x = Tensor::<2>::from_data([[1.0, 2.0, 3.0], [1.0, spoiled, 3.0]], &device).require_grad();
            let y = norm(x.clone(), Tensor::ones([3], &device), None, kind);
            let grad = x.grad(&y.clone().square().sum().backward()).unwrap();
            for of in [values(y), values(grad)] {
                assert!(of[..3].iter().all(|x| x.is_finite()), "{kind:?} {of:?}");
                assert!(of[3..].iter().any(|x| x.is_nan()), "{kind:?} {of:?}");
            }
        }
    }
}

#[test]
fn empty_tensors() {
    let device = testing::device().autodiff();
    for shape in [[0, 3], [2, 0]] {
        let x = Tensor::<2>::zeros(shape, &device).require_grad();
        let scale = Tensor::<1>::ones([shape[1]], &device).require_grad();
        let (sum, normed) = norm_of_sum(x.clone(), x.clone(), scale.clone(), None, LAYER);
        assert_eq!((sum.dims(), normed.dims()), (shape, shape));
        if is_flex(&device) {
            let grads = (sum + normed).sum().backward();
            assert_eq!(values(scale.grad(&grads).unwrap()), vec![0.0; shape[1]]);
        }
    }
}

/// Either result alone, and both, have the gradient of what was used.
#[test]
fn a_result_that_is_not_used_adds_nothing() {
    let device = testing::device().autodiff();
    let gradient = |uses: [bool; 2]| {
        let x = waves([4, 6], 1, FloatDType::F32, &device).require_grad();
        let (sum, normed) = norm_and_input(x.clone(), Tensor::ones([6], &device), None, LAYER);
        let parts = [sum.square(), normed.powi_scalar(3)];
        let used = parts.into_iter().zip(uses).filter(|(_, used)| *used).map(|(part, _)| part);
        let loss = used.reduce(|a, b| a + b).expect("one is used");
        Tensor::<2>::from_data(x.grad(&loss.sum().backward()).unwrap().into_data(), &testing::device())
    };
    let apart = gradient([true, false]) + gradient([false, true]);
    let most = (gradient([true, true]) - apart).abs().max().into_scalar::<f32>();
    assert!(most < 1e-5, "{most}");
}

#[test]
fn gradients_are_the_same_when_burn_recomputes() {
    let gradients = |device: &Device| {
        let x = waves([4, 6], 1, FloatDType::F32, device).require_grad();
        let scale = waves([6], 2, FloatDType::F32, device).require_grad();
        let (sum, normed) = norm_of_sum(x.clone().tanh(), x.clone().exp(), scale.clone(), None, LAYER);
        let grads = (sum.tanh() * normed.clone().exp() * normed).sum().backward();
        (x.grad(&grads).unwrap().into_data(), scale.grad(&grads).unwrap().into_data())
    };
    let device = testing::device().autodiff();
    let [again, once] =
        [device.clone().gradient_checkpointing(), device.clone()].map(|device| gradients(&device));
    if is_flex(&device) {
        assert_eq!(again, once);
    }
    // A queue that fuses operations may round a product and its sum as one, or as two.
    again.0.assert_approx_eq::<f32>(&once.0, Tolerance::relative(1e-6));
    again.1.assert_approx_eq::<f32>(&once.1, Tolerance::relative(1e-6));
}

/// A scale in f32 between rows in half precision has a gradient in f32.
#[test]
fn parameters_may_be_wider_than_rows() {
    let device = testing::device().autodiff();
    if !device.supports_dtype(FloatDType::BF16) {
        return;
    }
    let x = waves([4, 6], 1, FloatDType::BF16, &device).require_grad();
    let (scale, bias) = (Tensor::<1>::ones([6], &device), Tensor::<1>::zeros([6], &device));
    let (scale, bias) = (scale.require_grad(), bias.cast(FloatDType::BF16).require_grad());
    let y = norm(x.clone(), scale.clone(), Some(bias.clone()), RMS);
    let grads = y.cast(FloatDType::F32).sum().backward();
    assert_eq!(scale.grad(&grads).unwrap().dtype(), DType::F32);
    assert_eq!(bias.grad(&grads).unwrap().dtype(), DType::BF16);
    assert_eq!(x.grad(&grads).unwrap().dtype(), DType::BF16);
}

#[test]
#[should_panic(expected = "as wide as the last axis")]
fn a_scale_of_another_width_is_refused() {
    let device = testing::device();
    norm(Tensor::<2>::ones([2, 3], &device), Tensor::ones([2], &device), None, LAYER);
}
