//! Products in f32 on processors with AVX2 alone, by [`gemm`](https://docs.rs/gemm), which Burn's CPU backend brings along.
//!
//! Of AVX2's instructions it makes more than gemmkit does, above all in the gradient of a weight, whose inner axis is long. It
//! has no bias behind a product. The bits do not depend on the number of threads.
#![allow(unsafe_code)] // The product is written to memory that is not initialized first; each use is justified.

use std::mem::MaybeUninit;

use gemm::Parallelism;
use rayon::prelude::*;

use super::gemm::{Matrices, TASK};
use super::tiles::{is_avx2_alone, size_of};
use crate::memory::apart;

/// Returns whether products of these rows and columns are faster here than by gemmkit.
fn serves([rows, _, cols]: [usize; 3]) -> bool {
    is_avx2_alone() && rows > 1 && cols > 1
}

/// Multiplies the pairs of matrices, and returns the products one after another, by rows; or `None` where gemmkit is faster.
///
/// # Panics
///
/// If the shapes do not fit.
pub fn products(lhs: &Matrices<f32>, rhs: &Matrices<f32>) -> Option<Vec<f32>> {
    let size @ [rows, inner, cols] = size_of(lhs, rhs);
    if !serves(size) || inner == 0 {
        return None;
    }
    let size = rows.checked_mul(cols).expect("the size of a product fits usize");
    let length = size.checked_mul(lhs.starts.len()).expect("the size of the products fits usize");
    let mut out: Vec<f32> = Vec::with_capacity(length);
    let spare = &mut out.spare_capacity_mut()[..length];
    let work = size.saturating_mul(inner);
    if lhs.starts.len() >= 4 || work < TASK {
        let each = spare.par_chunks_mut(size).with_min_len(TASK.div_ceil(work)).enumerate();
        each.for_each(|(matrix, out)| write(lhs, rhs, matrix, out, Parallelism::None));
    } else {
        let all = Parallelism::Rayon(rayon::current_num_threads());
        spare.chunks_mut(size).enumerate().for_each(|(matrix, out)| write(lhs, rhs, matrix, out, all));
    }
    // SAFETY: the capacity is at least `length`, and each product above wrote all of its elements.
    unsafe { out.set_len(length) };
    Some(out)
}

/// Adds the product of the first matrices to `total`, which holds its rows one after another, and returns true; or changes
/// nothing, where gemmkit is faster.
///
/// # Panics
///
/// If the shapes do not fit.
pub fn add_product(lhs: &Matrices<f32>, rhs: &Matrices<f32>, total: &mut [f32]) -> bool {
    let size @ [rows, inner, cols] = size_of(lhs, rhs);
    assert_eq!(Some(total.len()), rows.checked_mul(cols), "products: the sum does not fit");
    if !serves(size) || inner == 0 {
        return false;
    }
    let parallelism = match total.len().saturating_mul(inner) < TASK {
        true => Parallelism::None,
        false => Parallelism::Rayon(rayon::current_num_threads()),
    };
    // SAFETY: the total has the elements of the product, is initialized, and is borrowed mutably.
    unsafe { multiply([lhs, rhs], 0, total.as_mut_ptr(), true, parallelism) };
    true
}

/// Writes one product.
fn write(
    lhs: &Matrices<f32>,
    rhs: &Matrices<f32>,
    matrix: usize,
    out: &mut [MaybeUninit<f32>],
    parallelism: Parallelism,
) {
    assert_eq!(out.len(), lhs.rows * rhs.cols);
    // SAFETY: there is room for the product, which is written without being read.
    unsafe { multiply([lhs, rhs], matrix, out.as_mut_ptr().cast(), false, parallelism) };
}

/// Multiplies a pair of matrices, neither of them empty.
///
/// # Safety
///
/// `to` has room for the rows of the product, is initialized if `adds`, and nothing else uses it.
unsafe fn multiply(
    [lhs, rhs]: [&Matrices<f32>; 2],
    matrix: usize,
    to: *mut f32,
    adds: bool,
    parallelism: Parallelism,
) {
    // Packed operands are memory of the process, not of the pass.
    let _apart = apart();
    let [a_row, a_col, b_row, b_col] =
        [lhs.row_stride, lhs.col_stride, rhs.row_stride, rhs.col_stride].map(|stride| stride as isize);
    // SAFETY: `Matrices::new` checked that each element of both operands is inside its slice; strides are not negative. The
    // rest is the caller's.
    unsafe {
        gemm::gemm(
            lhs.rows,
            rhs.cols,
            lhs.cols,
            to,
            1,
            rhs.cols as isize,
            adds,
            lhs.at(matrix, 0, 0),
            a_col,
            a_row,
            rhs.at(matrix, 0, 0),
            b_col,
            b_row,
            if adds { 1.0 } else { 0.0 },
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}
