//! Products that are added to a matrix, in place.
//!
//! Burn has no such operation: the product would be a second matrix of the size of a head's weight, and their sum a pass
//! of its own. Flex also holds each product twice for a moment, because it copies the result to aligned memory.
#![allow(unsafe_code)] // The matrix product takes pointers, of which the bounds are checked here.

use burn::backend::flex::FlexTensor;
use burn::tensor::Shape;
use gemm::Parallelism;

use crate::flex::{adjacent, tensor};

/// Products of fewer multiplications than this run on one core.
const PARALLEL: usize = 192 * 192 * 192;

/// A matrix in the storage of a tensor.
struct Matrix<'a> {
    storage: &'a [f32],
    start: usize,
    /// Elements between rows and between columns.
    strides: [usize; 2],
}

impl<'a> Matrix<'a> {
    /// Returns `None` if a stride is negative.
    fn of(x: &'a FlexTensor) -> Option<Self> {
        let layout = x.layout();
        let strides = [layout.strides()[0], layout.strides()[1]].map(|stride| usize::try_from(stride).ok());
        let strides = [strides[0]?, strides[1]?];
        let matrix = Self { storage: x.storage::<f32>(), start: layout.start_offset(), strides };
        let [rows, columns] = layout.shape().dims();
        let last =
            matrix.start + rows.saturating_sub(1) * strides[0] + columns.saturating_sub(1) * strides[1];
        (rows * columns == 0 || last < matrix.storage.len()).then_some(matrix)
    }

    fn pointer(&self) -> *const f32 {
        self.storage.get(self.start..).map_or(self.storage.as_ptr(), <[f32]>::as_ptr)
    }
}

/// Adds the product of `[m, k]` and `[k, n]` to `total`, `[m, n]`, or to zeros, all in f32. It copies `total` if others
/// read it.
///
/// # Panics
///
/// If the shapes do not fit.
pub(super) fn add_product(total: Option<FlexTensor>, lhs: FlexTensor, rhs: FlexTensor) -> FlexTensor {
    let ([m, k], [inner, n]) = (lhs.layout().shape().dims(), rhs.layout().shape().dims());
    let adds = total.is_some();
    let mut total = match total {
        Some(total) => adjacent(total),
        None => tensor(vec![0f32; m * n], Shape::new([m, n])),
    };
    let found: [usize; 2] = total.layout().shape().dims();
    assert_eq!((inner, found), (k, [m, n]), "a product is added to a matrix of its shape");
    let [lhs, rhs] = [lhs, rhs].map(|x| if Matrix::of(&x).is_some() { x } else { x.to_contiguous() });
    let (Some(lhs), Some(rhs)) = (Matrix::of(&lhs), Matrix::of(&rhs)) else {
        unreachable!("strides of adjacent elements are not negative");
    };
    let start = total.layout().start_offset();
    let out = &mut total.storage_mut::<f32>()[start..][..m * n];
    let threads = if m * n * k < PARALLEL { Parallelism::None } else { Parallelism::Rayon(0) };
    let strides = |[down, right]: [usize; 2]| [down as isize, right as isize];
    let ([lhs_down, lhs_right], [rhs_down, rhs_right]) = (strides(lhs.strides), strides(rhs.strides));
    // SAFETY: `out` has m · n elements, row after row, which nothing else accesses. `Matrix::of` checked that the last
    // element of each operand is within its storage, and strides are not negative, so that all others are before it.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            out.as_mut_ptr(),
            1,
            n as isize,
            adds,
            lhs.pointer(),
            lhs_right,
            lhs_down,
            rhs.pointer(),
            rhs_right,
            rhs_down,
            1f32,
            1f32,
            false,
            false,
            false,
            threads,
        );
    }
    total
}

#[cfg(test)]
mod tests {
    use burn::backend::Flex;
    use burn::tensor::{Device, Tensor, TensorData};

    use super::*;

    fn waves(shape: [usize; 2]) -> Tensor<2> {
        let values: Vec<f32> = (0..shape[0] * shape[1]).map(|at| (at as f32).sin()).collect();
        Tensor::from_data(TensorData::new(values, shape), &Device::flex())
    }

    #[test]
    fn it_adds_the_product_of_any_view() {
        for [m, k, n] in [[1, 1, 1], [3, 5, 2], [200, 210, 220], [2, 0, 3], [0, 2, 3]] {
            let operands = [
                (waves([m, k]), waves([k, n])),
                (waves([k, m]).transpose(), waves([n, k]).transpose()),
                (waves([m + 1, k + 2]).slice([1..m + 1, 1..k + 1]), waves([k, n]).flip([1])),
            ];
            for (lhs, rhs) in operands {
                let total = waves([m, n]);
                let of = |x: &Tensor<2>| x.clone().try_into_primitive::<Flex>().unwrap();
                let product = if k == 0 { total.zeros_like() } else { lhs.clone().matmul(rhs.clone()) };
                for (total, expected) in [(Some(of(&total)), total + product.clone()), (None, product)] {
                    let found = add_product(total, of(&lhs), of(&rhs));
                    let apart = (Tensor::<2>::from_primitive::<Flex>(found) - expected).abs().into_data();
                    assert!(apart.iter::<f32>().all(|apart| apart < 1e-4), "{m} {k} {n}");
                }
            }
        }
    }
}
