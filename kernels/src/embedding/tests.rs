use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};
use proptest::prelude::*;

use super::{embedding, embedding_sum};
use crate::testing;

fn waves<const D: usize>(shape: [usize; D], seed: usize, device: &Device) -> Tensor<D> {
    let count: usize = shape.iter().product();
    let values = (0..count).map(|at| (((at + 1) * (seed + 3)) as f32 * 0.618).sin());
    Tensor::from_data(TensorData::new(values.collect::<Vec<_>>(), shape), device)
}

fn values<const D: usize>(x: Tensor<D>) -> Vec<f32> {
    x.into_data().iter().collect()
}

/// Rows and the gradient of the table.
fn run(
    [rows, width, batch, length]: [usize; 4],
    dtype: FloatDType,
    device: &Device,
    of: fn(Tensor<2>, Tensor<2, Int>) -> Tensor<3>,
) -> [Vec<f32>; 2] {
    let ids: Vec<i32> = (0..batch * length).map(|at| (at * at % rows) as i32).collect();
    let ids = Tensor::<2, Int>::from_data(TensorData::new(ids, [batch, length]), device);
    let table = waves([rows, width], 1, device).cast(dtype).require_grad();
    let found = of(table.clone(), ids);
    let weights = waves([batch, length, width], 2, device).cast(dtype);
    let loss = (found.clone() * weights).cast(FloatDType::F32).sum();
    let grad = table.grad(&loss.backward()).unwrap();
    assert_eq!((found.dtype(), grad.dtype()), (DType::from(dtype), DType::from(dtype)));
    [values(found), values(grad)]
}

fn burns(table: Tensor<2>, ids: Tensor<2, Int>) -> Tensor<3> {
    burn::tensor::module::embedding(table, ids)
}

proptest! {
    #![proptest_config(testing::cases(32))]

    #[test]
    fn rows_equal_burns_and_gradients_equal_exact_sums(
        shape in [1usize..50, 1usize..70, 1usize..9, 1usize..30],
        dtype: prop::sample::Index,
    ) {
        let device = testing::device().autodiff();
        // The relative rounding of the dtype.
        let dtypes = testing::computed([
            (FloatDType::F32, f32::EPSILON / 2.0),
            (FloatDType::F16, 1.0 / 2048.0),
            (FloatDType::BF16, 1.0 / 256.0),
            (FloatDType::F64, f32::EPSILON / 2.0), // as f32, in which the values are read
        ]);
        let (dtype, rounding) = *dtype.get(&dtypes);
        let [found, grad] = run(shape, dtype, &device, embedding);
        let [expected, _] = run(shape, dtype, &device, burns);
        prop_assert_eq!(found, expected);
        // Burn sums in the dtype itself, whose rounding grows with the terms; ours are summed in f32 and rounded once.
        let [rows, width, batch, length] = shape;
        let [mut sums, mut magnitudes] = [(); 2].map(|()| vec![0f64; rows * width]);
        let weights = values(waves([batch, length, width], 2, &device).cast(dtype));
        for (at, weight) in weights.into_iter().enumerate() {
            let (token, column) = (at / width, at % width);
            let to = token * token % rows * width + column;
            sums[to] += f64::from(weight);
            magnitudes[to] += f64::from(weight.abs());
        }
        let in_f32 = f64::from(f32::EPSILON) * (batch * length) as f64;
        for (found, (sum, magnitude)) in grad.into_iter().zip(sums.into_iter().zip(magnitudes)) {
            let near = f64::from(rounding) * sum.abs() + in_f32 * magnitude;
            prop_assert!((f64::from(found) - sum).abs() <= near, "{} {} {}", found, sum, near);
        }
    }
}

/// The sum of the rows of two tables, and their gradients.
fn of_two(
    shape: [usize; 5],
    dtype: FloatDType,
    alike: bool,
    device: &Device,
    of: fn([(Tensor<2>, Tensor<2, Int>); 2]) -> Tensor<3>,
) -> [Vec<f32>; 3] {
    let [rows, others, width, batch, length] = shape;
    let ids = |batch: usize, rows: usize| {
        let ids: Vec<i32> = (0..batch * length).map(|at| (at * at % rows) as i32).collect();
        Tensor::<2, Int>::from_data(TensorData::new(ids, [batch, length]), device)
    };
    let [table, other] = [(rows, 1), (others, 4)]
        .map(|(rows, seed)| waves([rows, width], seed, device).cast(dtype).require_grad());
    let places = ids(if alike { 1 } else { batch }, others);
    let found = of([(table.clone(), ids(batch, rows)), (other.clone(), places)]);
    let weights = waves([batch, length, width], 2, device).cast(dtype);
    let grads = (found.clone() * weights).cast(FloatDType::F32).sum().backward();
    let [of_table, of_other] = [table, other].map(|table| table.grad(&grads).unwrap());
    assert_eq!([found.dtype(), of_table.dtype(), of_other.dtype()], [DType::from(dtype); 3]);
    [values(found), values(of_table), values(of_other)]
}

/// The same by two lookups, in which each row of the batch has its own places.
fn by_two([(table, ids), (other, places)]: [(Tensor<2>, Tensor<2, Int>); 2]) -> Tensor<3> {
    let places = places.expand(ids.dims());
    embedding(table, ids) + embedding(other, places)
}

proptest! {
    #![proptest_config(testing::cases(32))]

    #[test]
    fn sums_of_rows_and_their_gradients_equal_those_of_two_lookups(
        shape in [1usize..50, 1usize..70, 1usize..70, 1usize..9, 1usize..30],
        dtype: prop::sample::Index,
        alike: bool,
    ) {
        let device = testing::device().autodiff();
        let dtypes = [FloatDType::F32, FloatDType::F16, FloatDType::BF16, FloatDType::F64];
        let dtypes = testing::computed(dtypes.map(|dtype| (dtype, ())));
        let (dtype, ()) = *dtype.get(&dtypes);
        let found = of_two(shape, dtype, alike, &device, embedding_sum);
        let [rows, of_table, of_other] = of_two(shape, dtype, alike, &device, by_two);
        prop_assert_eq!(&found[0], &rows);
        prop_assert_eq!(&found[1], &of_table);
        match dtype {
            // Burn adds the rows of the batch first.
            FloatDType::F64 => {
                let near = found[2].iter().zip(&of_other).all(|(x, y)| (x - y).abs() < 1e-4);
                prop_assert!(near, "{:?} {:?}", found[2], of_other);
            }
            _ => prop_assert_eq!(&found[2], &of_other),
        }
    }
}

#[test]
fn each_device_sums_the_gradients_of_a_row() {
    let device = testing::device().autodiff();
    let shape = [5, 8, 2, 9];
    let [found, grad] = run(shape, FloatDType::F32, &device, embedding);
    let [expected, expected_grad] = run(shape, FloatDType::F32, &device, burns);
    assert_eq!(found, expected);
    assert!(grad.iter().zip(expected_grad).all(|(found, expected)| (found - expected).abs() < 1e-5));
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| run([300, 40, 7, 90], FloatDType::F32, &Device::flex().autodiff(), embedding))
    };
    let alone = on(1);
    for threads in [2, 3, 8] {
        assert_eq!(on(threads), alone, "{threads} threads");
    }
}

/// 3072 gradients of 1 sum to 3072; a sum in bf16 stops at 256, one in f16 at 2048.
#[test]
fn gradients_are_summed_in_f32() {
    let device = testing::device().autodiff();
    for (dtype, ()) in testing::computed([(FloatDType::BF16, ()), (FloatDType::F16, ())]) {
        let table = Tensor::<2>::ones([2, 3], &device).cast(dtype).require_grad();
        let rows = embedding(table.clone(), Tensor::<2, Int>::zeros([6, 512], &device));
        let grad = table.grad(&rows.cast(FloatDType::F32).sum().backward()).unwrap();
        assert_eq!(values(grad), [3072.0, 3072.0, 3072.0, 0.0, 0.0, 0.0]);
    }
}

#[test]
fn a_view_and_no_ids() {
    let device = Device::flex().autodiff();
    let table = waves([4, 3], 1, &device).require_grad();
    let ids = Tensor::<2, Int>::from_data([[2, 0], [1, 2]], &device);
    let rows = embedding(table.clone().transpose(), ids.clone().transpose());
    let expected = burns(table.clone().transpose(), ids.transpose());
    assert_eq!(rows.into_data(), expected.into_data());
    let none = embedding(table.clone(), Tensor::<2, Int>::zeros([2, 0], &device));
    assert_eq!(none.dims(), [2, 0, 3]);
    assert_eq!(values(table.grad(&none.sum().backward()).unwrap()), [0.0; 12]);
}

#[test]
#[should_panic(expected = "found 4")]
fn an_id_beyond_the_table_is_refused() {
    let device = Device::flex();
    embedding(Tensor::ones([4, 2], &device), Tensor::<2, Int>::from_data([[4]], &device));
}

#[test]
#[should_panic(expected = "places are [2, 3] or [1, 3]; found [2, 1]")]
fn places_of_another_shape_are_refused() {
    let device = Device::flex();
    let ids = |shape: [usize; 2]| Tensor::<2, Int>::zeros(shape, &device);
    let table = || Tensor::<2>::ones([4, 2], &device);
    embedding_sum([(table(), ids([2, 3])), (table(), ids([2, 1]))]);
}
