mod heads;

use burn::tensor::activation::log_softmax;
use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};
use proptest::prelude::*;

use super::{Head, HeadWeight, IGNORED, cross_entropy, head_loss};
use crate::device::is_flex;
use crate::testing;

/// Numbers of both signs.
pub(super) fn waves<const D: usize>(
    shape: [usize; D],
    seed: usize,
    dtype: FloatDType,
    device: &Device,
) -> Tensor<D> {
    let count: usize = shape.iter().product();
    let values = (0..count).map(|at| (((at + 1) * (seed + 3)) as f32 * 0.618).sin() * 1.5);
    let data = TensorData::new(values.collect::<Vec<_>>(), shape);
    Tensor::<D>::from_data(data, device).cast(dtype)
}

pub(super) fn values<const D: usize>(x: Tensor<D>) -> Vec<f64> {
    x.into_data().iter().collect()
}

/// Labels of which one in `ignored` is -100; none if it is 0.
pub(super) fn labels(rows: usize, classes: usize, ignored: usize) -> Vec<i32> {
    let label = |row: usize| match ignored > 0 && row.is_multiple_of(ignored) {
        true => IGNORED,
        false => ((row * 7 + 3) % classes) as i32,
    };
    (0..rows).map(label).collect()
}

/// The loss as the equation says.
fn composed(logits: Tensor<2>, labels: &[i32], smoothing: f64) -> Tensor<1> {
    let labels = Tensor::<1, Int>::from_data(TensorData::from(labels), &logits.device());
    let ignored = labels.clone().equal_scalar(IGNORED);
    let picked = labels.mask_fill(ignored.clone(), 0).unsqueeze_dim(1);
    let likelihoods = log_softmax(logits, 1);
    let of_label = likelihoods.clone().gather(1, picked).squeeze_dim::<1>(1);
    let likely = of_label * (1.0 - smoothing) + likelihoods.mean_dim(1).squeeze_dim::<1>(1) * smoothing;
    likely.mask_fill(ignored, 0.0).sum().neg()
}

fn ours(logits: Tensor<2>, labels: &[i32], smoothing: f64) -> Tensor<1> {
    let labels = Tensor::<1, Int>::from_data(TensorData::from(labels), &logits.device());
    cross_entropy(logits, labels, smoothing)
}

pub(super) fn near(found: &[f64], expected: &[f64], share: f64, about: &str) {
    assert_eq!(found.len(), expected.len(), "{about}");
    let most = expected.iter().fold(1f64, |most, x| most.max(x.abs()));
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() <= share * most, "{about}: {found} {expected}");
    }
}

proptest! {
    #![proptest_config(testing::cases(48))]

    #[test]
    fn any_loss_and_its_gradient_equal_the_equation(
        rows in 1usize..40,
        // Rows that all units of a device read more than once, too.
        classes in prop_oneof![1usize..200, 200usize..1200],
        ignored in 0usize..4,
        smoothing in prop::sample::select(vec![0.0, 0.1, 1.0]),
        view in 0usize..3,
        dtype: prop::sample::Index,
    ) {
        // The share of the largest number up to which results are near.
        let of_device = testing::computed([
            (FloatDType::F32, 1e-5),
            (FloatDType::F64, 1e-11),
            (FloatDType::BF16, 5e-3),
            (FloatDType::F16, 1e-3),
        ]);
        let (dtype, share) = *dtype.get(&of_device);
        let labels = labels(rows, classes, ignored);
        let run = |of: fn(Tensor<2>, &[i32], f64) -> Tensor<1>, computed: FloatDType, device: Device| {
            let shape = [[rows, classes], [classes, rows], [rows + 1, classes + 2]][view];
            let leaf = waves(shape, 1, dtype, &device.autodiff()).cast(computed).require_grad();
            let logits = match view {
                1 => leaf.clone().transpose(),
                2 => leaf.clone().slice([1..rows + 1, 1..classes + 1]),
                _ => leaf.clone(),
            };
            let loss = of(logits, &labels, smoothing);
            let value = loss.clone().into_scalar::<f64>();
            let grads = (loss * 0.5).backward();
            (value, values(leaf.grad(&grads).unwrap()))
        };
        let (found, slopes) = run(ours, dtype, testing::device());
        let (expected, expected_slopes) = run(composed, FloatDType::F64, Device::flex());
        near(&[found], &[expected], if dtype == FloatDType::F64 { 1e-6 } else { 1e-5 }, "loss");
        near(&slopes, &expected_slopes, share, "gradient");
    }

    #[test]
    fn the_loss_of_any_head_is_that_of_its_logits(
        rows in 1usize..90,
        width in 1usize..20,
        classes in 1usize..70,
        ignored in 0usize..3,
        transposed: bool,
        biased: bool,
        capped: bool,
        tracked: [bool; 3],
        dtype: prop::sample::Index,
    ) {
        let of_device =
            testing::computed([(FloatDType::F32, 1e-5), (FloatDType::BF16, 0.02), (FloatDType::F16, 3e-3)]);
        let (dtype, share) = *dtype.get(&of_device);
        let cap = capped.then_some(0.8);
        let case = Case { rows, width, classes, ignored, transposed, biased, cap, tracked };
        let loss = |hidden, head: &Head, labels: &[i32]| head_loss(hidden, head, labels, 0.1);
        let found = case.run(dtype, dtype, &testing::device().autodiff(), loss);
        let expected = case.run(FloatDType::F64, dtype, &Device::flex().autodiff(), |hidden, head, labels| {
            composed(head.logits(hidden), labels, 0.1)
        });
        for (which, (found, expected)) in found.into_iter().zip(expected).enumerate() {
            assert_eq!(found.is_some(), expected.is_some(), "{which} of {case:?}");
            let (found, expected) = (found.unwrap_or_default(), expected.unwrap_or_default());
            near(&found, &expected, share, &format!("{which} of {case:?}"));
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    rows: usize,
    width: usize,
    classes: usize,
    ignored: usize,
    transposed: bool,
    biased: bool,
    cap: Option<f64>,
    /// The hidden state, the weight and the bias.
    tracked: [bool; 3],
}

impl Case {
    const PLAIN: Self = Self {
        rows: 5,
        width: 3,
        classes: 4,
        ignored: 3,
        transposed: true,
        biased: true,
        cap: None,
        tracked: [true; 3],
    };

    /// The loss and the gradients of hidden state, weight and bias.
    fn run(
        self,
        dtype: FloatDType,
        coarse: FloatDType,
        device: &Device,
        loss: impl Fn(Tensor<2>, &Head, &[i32]) -> Tensor<1>,
    ) -> Vec<Option<Vec<f64>>> {
        let Self { rows, width, classes, ignored, transposed, biased, cap, tracked } = self;
        let leaf = |shape, seed, tracked| {
            waves::<2>(shape, seed, coarse, device).cast(dtype).set_require_grad(tracked)
        };
        let hidden = leaf([rows, width], 1, tracked[0]);
        let weight = leaf(if transposed { [classes, width] } else { [width, classes] }, 2, tracked[1]);
        let bias = waves([classes], 3, coarse, device).cast(dtype).set_require_grad(tracked[2]);
        let of_head = weight.clone();
        let head = Head {
            weight: if transposed { HeadWeight::Embedding(of_head) } else { HeadWeight::Linear(of_head) },
            bias: biased.then(|| bias.clone()),
            cap,
        };
        let sum = loss(hidden.clone(), &head, &labels(rows, classes, ignored));
        let mut found = vec![Some(values(sum.clone()))];
        if tracked[0] || tracked[1] || biased && tracked[2] {
            let grads = (sum * 0.25).backward();
            found.extend([hidden, weight].map(|x| x.grad(&grads).map(values)));
            found.push(bias.grad(&grads).map(values));
        }
        found
    }
}

/// Several chunks of logits, and rows of which most have no label.
#[test]
fn chunks_and_selected_rows_change_nothing() {
    let device = Device::flex().autodiff();
    for (rows, ignored) in [(600, 0), (600, 5), (600, 1)] {
        for transposed in [true, false] {
            let case = Case { rows, classes: 17_000, ignored, transposed, ..Case::PLAIN };
            assert!(super::head::chunk(rows, case.classes, DType::F32, true) < rows);
            let run = |loss: fn(Tensor<2>, &Head, &[i32]) -> Tensor<1>| {
                case.run(FloatDType::F32, FloatDType::F32, &device, loss)
            };
            let found = run(|hidden, head, labels| head_loss(hidden, head, labels, 0.0));
            let expected = run(|hidden, head, labels| ours(head.logits(hidden), labels, 0.0));
            for (found, expected) in found.into_iter().zip(expected) {
                near(&found.unwrap(), &expected.unwrap(), 1e-4, &format!("{case:?}"));
            }
        }
    }
    let few = |rows: usize| labels(rows, 9, 0).into_iter().enumerate();
    let mostly: Vec<i32> = few(700).map(|(at, label)| if at % 7 == 0 { label } else { IGNORED }).collect();
    let hidden = waves([700, 3], 1, FloatDType::F32, &device);
    let (selected, kept) = super::with_loss(hidden, &mostly);
    assert_eq!((selected.dims(), kept.len()), ([128, 3], 128));
    assert_eq!(kept.iter().filter(|label| **label != IGNORED).count(), 100);
}

/// On a GPU, tests have chunks of 256 rows.
#[test]
fn chunks_change_nothing_on_any_device() {
    let device = testing::device().autodiff();
    assert_eq!(super::head::chunk(600, 41, DType::F32, false), 256);
    let dtypes =
        testing::computed([(FloatDType::F32, 1e-4), (FloatDType::F16, 1e-2), (FloatDType::BF16, 4e-2)]);
    for (tracked, (dtype, share)) in [[true; 3], [false; 3], [true; 3]].into_iter().zip(dtypes) {
        let case = Case { rows: 600, classes: 41, tracked, ..Case::PLAIN };
        let loss = |hidden, head: &Head, labels: &[i32]| head_loss(hidden, head, labels, 0.0);
        let found = case.run(dtype, dtype, &device, loss);
        let whole = |hidden, head: &Head, labels: &[i32]| composed(head.logits(hidden), labels, 0.0);
        let expected = case.run(FloatDType::F64, dtype, &Device::flex().autodiff(), whole);
        for (found, expected) in found.into_iter().zip(expected) {
            near(&found.unwrap(), &expected.unwrap(), share, &format!("{case:?}"));
        }
    }
}

/// Each probability but one is e⁻¹⁸, less than half of the smallest number of f16.
#[test]
fn small_probabilities_have_gradients_in_f16() {
    let device = testing::device().autodiff();
    let dtype = FloatDType::F16;
    let hidden = Tensor::<2>::ones([300, 4], &device).cast(dtype);
    let weight = Tensor::<2>::zeros([9, 4], &device).slice_fill([0..1, 0..4], 4.5).cast(dtype).require_grad();
    let head = Head { weight: HeadWeight::Embedding(weight.clone()), bias: None, cap: None };
    let loss = head_loss(hidden, &head, &[0; 300], 0.0);
    let grad = values(weight.grad(&(loss * 65_536.0).backward()).unwrap());
    let expected = 65_536.0 * 300.0 * (-18f64).exp();
    assert!(grad[4..].iter().all(|found| (found / expected - 1.0).abs() < 2e-3), "{expected} {grad:?}");
}

#[test]
fn each_device_computes_the_equation() {
    let device = testing::device().autodiff();
    for smoothing in [0.0, 0.2] {
        let loss = |of: fn(Tensor<2>, &[i32], f64) -> Tensor<1>| {
            let logits = waves([9, 30], 1, FloatDType::F32, &device).require_grad();
            let loss = of(logits.clone(), &labels(9, 30, 4), smoothing);
            let value = values(loss.clone());
            [value, values(logits.grad(&loss.backward()).unwrap())].concat()
        };
        near(&loss(ours), &loss(composed), 1e-5, "cross_entropy");
        let case = Case { rows: 9, ..Case::PLAIN };
        let found = case.run(FloatDType::F32, FloatDType::F32, &device, |hidden, head, labels| {
            head_loss(hidden, head, labels, smoothing)
        });
        let expected = case.run(FloatDType::F32, FloatDType::F32, &device, |hidden, head, labels| {
            composed(head.logits(hidden), labels, smoothing)
        });
        for (found, expected) in found.into_iter().zip(expected) {
            near(&found.unwrap(), &expected.unwrap(), 1e-5, "head_loss");
        }
    }
}

/// The kernel and the composed operations of other backends.
#[test]
fn composed_rows_equal_the_kernels() {
    use burn::backend::Flex;

    use super::rows::{self, Before, Labels, LossRows};
    let device = Device::flex();
    let logits = waves([7, 90], 1, FloatDType::F32, &device);
    let of = Tensor::<1, Int>::from_data(TensorData::from(&*labels(7, 90, 3)), &device);
    let of = Labels::<Flex>(of.try_into_primitive::<Flex>().unwrap());
    let logits = || logits.clone().try_into_primitive::<Flex>().unwrap();
    let tensor = |x| values(Tensor::<2>::from_primitive::<Flex>(x));
    for smoothing in [0.0, 0.3] {
        let (sum, logarithms) = rows::losses::<Flex>(logits(), of.clone(), smoothing);
        let slopes = rows::slopes::<Flex>(logits(), logarithms.clone(), of.clone(), smoothing);
        let (found, of_rows) = Flex::losses(Before::none(7), logits(), None, of.clone(), smoothing);
        let (again, of_kernel) =
            Flex::losses_and_slopes(Before::none(7), logits(), None, of.clone(), smoothing);
        let scalar = |x| Tensor::<1>::from_primitive::<Flex>(x).into_scalar::<f64>();
        let sum = scalar(sum);
        near(&[scalar(found), scalar(again)], &[sum, sum], 1e-6, "loss");
        near(&tensor(of_rows), &tensor(logarithms), 1e-6, "logarithms");
        near(&tensor(of_kernel), &tensor(slopes), 1e-6, "gradient");
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let device = Device::flex().autodiff();
            let logits = waves([300, 97], 1, FloatDType::F32, &device).require_grad();
            let loss = ours(logits.clone(), &labels(300, 97, 5), 0.1);
            let grad = logits.grad(&loss.clone().backward()).unwrap();
            let case = Case { rows: 300, width: 24, classes: 97, ..Case::PLAIN };
            let head = case.run(FloatDType::F32, FloatDType::F32, &device, |hidden, head, labels| {
                head_loss(hidden, head, labels, 0.1)
            });
            (values(loss), values(grad), head)
        })
    };
    let alone = on(1);
    for threads in [2, 3, 8] {
        assert!(on(threads) == alone, "{threads} threads");
    }
}

#[test]
fn logits_that_are_not_finite() {
    let device = testing::device().autodiff();
    let low = f32::NEG_INFINITY;
    let logits = [[0.0, low, 0.0, -200.0], [1.0, f32::NAN, 0.0, 0.0], [500.0, 0.0, 500.0, low]];
    let logits = Tensor::<2>::from_data(logits, &device).require_grad();
    let loss = |labels: [i32; 3]| ours(logits.clone(), &labels, 0.0);
    let found = loss([0, IGNORED, 2]);
    assert!((found.clone().into_scalar::<f64>() - 4f64.ln()).abs() < 1e-6);
    let grad = values(logits.grad(&found.backward()).unwrap());
    let expected = [-0.5, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 0.0, -0.5, 0.0];
    near(&grad, &expected, 1e-6, "gradient");
    assert!(loss([0, 1, 2]).into_scalar::<f64>().is_nan());
    assert_eq!(loss([1, IGNORED, 2]).into_scalar::<f64>(), f64::INFINITY);
}

#[test]
fn rows_without_labels_add_nothing() {
    let device = testing::device().autodiff();
    let logits = Tensor::<2>::ones([2, 3], &device).require_grad();
    let loss = ours(logits.clone(), &[IGNORED; 2], 0.1);
    assert_eq!(loss.clone().into_scalar::<f32>(), 0.0);
    assert_eq!(values(logits.grad(&loss.backward()).unwrap()), [0.0; 6]);

    let case = Case { ignored: 1, ..Case::PLAIN };
    let run = |hidden, head: &Head, labels: &[i32]| head_loss(hidden, head, labels, 0.1);
    for found in case.run(FloatDType::F32, FloatDType::F32, &device, run) {
        assert!(found.unwrap().into_iter().all(|x| x == 0.0));
    }
    if is_flex(&device) {
        let none = Case { rows: 0, ..Case::PLAIN };
        for found in none.run(FloatDType::F32, FloatDType::F32, &device, run) {
            assert!(found.unwrap().into_iter().all(|x| x == 0.0));
        }
    }
}

#[test]
#[should_panic(expected = "found 3")]
fn a_label_beyond_the_classes_is_refused() {
    ours(Tensor::ones([1, 3], &Device::flex()), &[3], 0.0);
}
