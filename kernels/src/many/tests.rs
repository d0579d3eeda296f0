use burn::backend::DispatchTensor;
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use super::{add_all, cast_all, clip_all, l2_norm, scale_all, sum_of_squares};
use crate::testing;

/// Returns numbers of many magnitudes and their sum of squares in f64.
fn numbers(count: usize, seed: usize) -> (Vec<f32>, f64) {
    let values: Vec<f32> = (0..count).map(|at| ((at * 7 + seed) as f32 * 0.37).sin() * 3.0).collect();
    let sum = values.iter().map(|value| f64::from(*value).powi(2)).sum();
    (values, sum)
}

fn tensor(values: Vec<f32>, device: &Device) -> Tensor<1> {
    let count = values.len();
    Tensor::from_data(TensorData::new(values, [count]), device)
}

#[test]
fn the_sum_is_over_all_elements_of_all_tensors() {
    let device = testing::device();
    for counts in [vec![1], vec![5000, 1, 4096, 4097], (1..80).collect()] {
        let (mut tensors, mut expected) = (Vec::new(), 0.0);
        for (seed, count) in counts.into_iter().enumerate() {
            let (values, sum) = numbers(count, seed);
            expected += sum;
            tensors.push(tensor(values, &device).into_dispatch());
        }
        let found = f64::from(sum_of_squares(tensors).into_scalar::<f32>());
        assert!((found - expected).abs() <= 1e-5 * expected, "{found} {expected}");
    }
}

#[test]
fn ranks_strides_and_dtypes_may_differ() {
    let device = testing::device();
    let x = Tensor::<2>::from_data([[1.0, 2.0], [3.0, 4.0]], &device);
    for (half, ()) in testing::computed([(FloatDType::F16, ()), (FloatDType::BF16, ())]) {
        let views = [x.clone().transpose().into_dispatch(), x.clone().narrow(1, 1, 1).into_dispatch()];
        let halves = x.clone().cast(half).reshape([4]).into_dispatch();
        let all = views.into_iter().chain([halves, x.clone().reshape([1, 2, 2]).into_dispatch()]).collect();
        let sum = sum_of_squares(all);
        assert_eq!((sum.dtype(), sum.into_scalar::<f32>()), (DType::F32, 30.0 + 20.0 + 30.0 + 30.0));
    }
}

#[test]
fn what_is_not_finite_shows() {
    let device = testing::device();
    for value in [f32::INFINITY, f32::NAN, 1e30] {
        let tensors = [tensor(vec![0.5; 9000], &device), tensor(vec![1.0, value], &device)];
        let sum = sum_of_squares(tensors.into_iter().map(Tensor::into_dispatch).collect());
        assert!(!sum.into_scalar::<f32>().is_finite(), "{value}");
    }
}

/// Bounded as in f64, within f32's rounding; by a norm that is not a number, nothing is one.
#[test]
fn tensors_are_bounded_by_their_norm() {
    let device = testing::device();
    let (values, sum) = numbers(9000, 3);
    let given = || tensor(values.clone(), &device).into_dispatch();
    let norm = l2_norm(vec![given()]);
    let found = f64::from(norm.clone().into_scalar::<f32>());
    assert!((found - sum.sqrt()).abs() <= 1e-5 * found, "{found} {sum}");
    let first = |clipped: Vec<DispatchTensor>| {
        let [clipped] = clipped.try_into().unwrap();
        f64::from(Tensor::<1>::from_dispatch(clipped).into_data().iter::<f32>().next().unwrap())
    };
    for max in [0.5, found * 0.999, found * 1.001, 1e6] {
        let factor =
            first(clip_all(vec![(given(), FloatDType::F32)], norm.clone(), max)) / f64::from(values[0]);
        let expected = (max / (found + 1e-6)).min(1.0);
        assert!((factor - expected).abs() <= 1e-6 * expected, "{max} {factor} {expected}");
    }
    let by = |norm: f32| {
        let three = tensor(vec![3.0], &device).into_dispatch();
        first(clip_all(vec![(three, FloatDType::F32)], tensor(vec![norm], &device), 1.0))
    };
    assert_eq!([0.0, f32::INFINITY].map(by), [3.0, 0.0]);
    assert!(by(f32::NAN).is_nan());
}

/// What is widened while it is bounded has the bits of what was widened before.
#[test]
fn tensors_are_bounded_in_another_dtype() {
    let device = testing::device();
    let norm = tensor(vec![3.0], &device);
    for (half, ()) in testing::computed([(FloatDType::F16, ()), (FloatDType::BF16, ())]) {
        let halves = [5000, 3].map(|count| tensor(numbers(count, count).0, &device).cast(half));
        let wide = halves.clone().map(|x| (x.cast(FloatDType::F32).into_dispatch(), FloatDType::F32));
        let narrow = halves.map(|x| (x.into_dispatch(), FloatDType::F32));
        let [found, expected] = [narrow, wide].map(|tensors| {
            let bounded = clip_all(tensors.into(), norm.clone(), 0.7).into_iter();
            bounded.map(|x| Tensor::<1>::from_dispatch(x).into_data()).collect::<Vec<_>>()
        });
        assert_eq!(found, expected, "{half:?}");
    }
}

#[test]
fn an_empty_tensor_adds_nothing() {
    let device = testing::device();
    let none = || Tensor::<1>::empty([0], &device).into_dispatch();
    let sum = sum_of_squares(vec![none(), tensor(vec![3.0], &device).into_dispatch(), none()]);
    assert_eq!(sum.into_scalar::<f32>(), 9.0);
}

#[test]
fn each_tensor_is_scaled_in_its_dtype() {
    let device = testing::device();
    let factor = Tensor::<1>::from_data([0.25], &device);
    let counts = [1, 5000, 4096, 0, 4097];
    let inputs = counts.map(|count| numbers(count, count).0);
    let tensors = inputs.clone().map(|values| tensor(values, &device));
    let [kept, ..] = tensors.clone();
    let mut given: Vec<_> = tensors.into_iter().map(Tensor::into_dispatch).collect();
    let dtypes = testing::computed([(FloatDType::F16, DType::F16), (FloatDType::BF16, DType::BF16)]);
    given.extend(dtypes.iter().map(|(dtype, _)| {
        let halves = Tensor::<2>::from_data([[1.0, 2.0], [3.0, 4.0]], &device).cast(*dtype);
        halves.transpose().into_dispatch()
    }));
    let mut found = scale_all(given, factor).into_iter();
    for values in inputs.clone() {
        let found = Tensor::<1>::from_dispatch(found.next().unwrap()).into_data();
        let expected: Vec<f32> = values.iter().map(|value| value * 0.25).collect();
        assert_eq!(found.try_to_vec::<f32>().unwrap(), expected);
    }
    for (_, dtype) in dtypes {
        let halves = Tensor::<2>::from_dispatch(found.next().unwrap());
        assert_eq!(halves.dtype(), dtype);
        assert_eq!(halves.into_data().iter::<f32>().collect::<Vec<_>>(), [0.25, 0.75, 0.5, 1.0]);
    }
    // A tensor that is held elsewhere keeps its values.
    assert_eq!(kept.into_data().try_to_vec::<f32>().unwrap(), inputs[0]);
}

#[test]
fn pairs_of_any_dtypes_are_added_in_f32() {
    let device = testing::device();
    let dtypes = [FloatDType::F32, FloatDType::F16, FloatDType::BF16];
    let counts = [1, 5000, 0, 4097];
    let pairs = dtypes.into_iter().flat_map(|x| dtypes.map(|y| (x, y)));
    let pairs: Vec<_> =
        pairs.filter(|(x, y)| device.supports_dtype(*x) && device.supports_dtype(*y)).collect();
    let cases = counts.into_iter().flat_map(|count| pairs.iter().map(move |(x, y)| (count, *x, *y)));
    let (mut left, mut right, mut expected) = (Vec::new(), Vec::new(), Vec::new());
    for (count, x, y) in cases {
        let of = |seed, dtype| tensor(numbers(count, seed).0, &device).cast(dtype);
        let (x, y) = (of(1, x), of(2, y));
        let wide = |x: &Tensor<1>| x.clone().cast(FloatDType::F32).into_data().try_to_vec::<f32>().unwrap();
        expected.push(wide(&x).iter().zip(wide(&y)).map(|(x, y)| x + y).collect::<Vec<_>>());
        left.push(x.into_dispatch());
        right.push(y.into_dispatch());
    }
    for (found, expected) in add_all(left, right, FloatDType::F32).into_iter().zip(expected) {
        let found = Tensor::<1>::from_dispatch(found).into_data().try_to_vec::<f32>().unwrap();
        assert_eq!(found, expected);
    }
}

#[test]
fn casts_divide_in_f32_and_keep_the_order() {
    let device = testing::device();
    let counts = [3, 5000, 1, 0, 4096];
    let all: Vec<_> = (0..70).map(|at| counts[at % counts.len()]).collect();
    let values = |seed: usize, count| numbers(count, seed).0;
    let last = if device.supports_dtype(FloatDType::BF16) { FloatDType::BF16 } else { FloatDType::F16 };
    for divisor in [1.0, 4.0, 3.0] {
        let given = all.iter().enumerate().map(|(seed, count)| {
            let dtype = match seed % 3 {
                0 => FloatDType::F32,
                1 => FloatDType::F16,
                _ => last,
            };
            // Not by a cast of Burn's: one among many may be left out of a queue that fuses them.
            let data = TensorData::new(values(seed, *count), [*count]).convert_dtype(dtype.into());
            Tensor::<1>::from_data(data, (&device, DType::from(dtype))).into_dispatch()
        });
        let found = cast_all(given.collect(), FloatDType::F32, divisor);
        for (seed, (found, count)) in found.into_iter().zip(&all).enumerate() {
            let found = Tensor::<1>::from_dispatch(found);
            assert_eq!(found.dtype(), DType::F32);
            let narrow = |x: f32| match seed % 3 {
                0 => x,
                2 if last == FloatDType::BF16 => half::bf16::from_f32(x).to_f32(),
                _ => half::f16::from_f32(x).to_f32(),
            };
            let expected = values(seed, *count).into_iter().map(|x| narrow(x) / divisor as f32);
            for (at, (found, expected)) in found.into_data().iter::<f32>().zip(expected).enumerate() {
                assert!(
                    (found - expected).abs() <= 2e-7 * expected.abs(),
                    "{seed} {at} {divisor}: {found} {expected}"
                );
            }
        }
    }
}

#[test]
fn sums_and_products_do_not_depend_on_the_number_of_threads() {
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let (values, _) = numbers(100_003, 5);
            let x = tensor(values, &Device::flex()).into_dispatch();
            let factor = Tensor::from_data([0.3], &Device::flex());
            let scaled = scale_all(vec![x.clone()], factor).remove(0);
            (sum_of_squares(vec![x]).into_data(), Tensor::<1>::from_dispatch(scaled).into_data())
        })
    };
    let (alone, (values, expected)) = (on(1), numbers(100_003, 5));
    assert!((f64::from(alone.0.iter::<f32>().next().unwrap()) / expected - 1.0).abs() < 1e-7);
    assert!(alone.1.iter::<f32>().eq(values.into_iter().map(|x| x * 0.3)));
    assert_eq!(on(3), alone);
}
