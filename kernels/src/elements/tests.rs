use burn::tensor::{Device, FloatDType, Tensor, TensorData};

use super::{CLEARED, zeros_on_all_cores};
use crate::{Draws, Gate, Gelu, Samples, Site, add, add_dropout, cast, dropout, gated, gelu};

/// The operations that compute element by element, in which a task's share depends on the number of threads.
fn results(shape: [usize; 3], dtype: FloatDType) -> Vec<TensorData> {
    let device = Device::flex().autodiff();
    let leaf = |seed: usize| {
        let values: Vec<f32> =
            (0..shape.iter().product()).map(|i: usize| 4.0 * ((i * 3 + seed) as f32 * 0.61).sin()).collect();
        cast(Tensor::<3>::from_data(TensorData::new(values, shape), &device), dtype).require_grad()
    };
    let site =
        Site { draws: Draws { seed: 3, epoch: 1, first: 5 }, number: 2, samples: &Samples::Columns, from: 0 };
    let operations: [&dyn Fn(Tensor<3>, Tensor<3>) -> Tensor<3>; 8] = [
        &|x, _| gelu(x, Gelu::Exact),
        &|x, _| gelu(x, Gelu::Tanh),
        &|x, y| gated(x, y, Gate::Silu),
        &|x, y| gated(x, y, Gate::Gelu(Gelu::Exact)),
        &add,
        &|x, y| add_dropout(x, y, 0.3, &[1], site),
        &|x, _| dropout(x, 0.3, &[1], site),
        &|x, y| add(x.clone().swap_dims(0, 1), y.swap_dims(0, 1)) + x.swap_dims(0, 1),
    ];
    let mut found = Vec::new();
    for operation in operations {
        let (x, y) = (leaf(1), leaf(2));
        let z = operation(x.clone(), y.clone());
        let grads = (z.clone() * z.clone()).sum().backward();
        found.push(z.into_data());
        found.extend([x, y].iter().filter_map(|x| x.grad(&grads)).map(Tensor::into_data));
    }
    found
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    // One task, and many with an end that fills neither a task nor a vector.
    for shape in [[1, 3, 5], [3, 67, 331]] {
        for dtype in [FloatDType::F32, FloatDType::BF16, FloatDType::F16] {
            let on = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                pool.install(|| results(shape, dtype))
            };
            let alone = on(1);
            for threads in [2, 3, 8] {
                assert_eq!(on(threads), alone, "{threads} threads, {shape:?}, {dtype:?}");
            }
        }
    }
}

#[test]
fn memory_of_any_length_is_cleared() {
    for length in [0, 1, 2 * CLEARED - 1, 2 * CLEARED, 3 * CLEARED + 7] {
        // What was freed is likely to be taken again.
        drop(vec![1.0f32; length]);
        assert!(zeros_on_all_cores::<f32>(length) == vec![0.0; length], "{length}");
    }
}
