//! Products in f32 by [`gemm`](https://docs.rs/gemm), which Burn's CPU backend brings along.
//!
//! Of AVX2 and AVX-512 it makes more than gemmkit does, above all on several cores. It has no bias behind a product, which is
//! added in a second pass over what was just written. It packs a right operand slowly whose columns are adjacent, as in the
//! gradient of a layer's input: where that counts, the operand is transposed first. The bits do not depend on the number of
//! threads.
#![allow(unsafe_code)] // The product is written to memory that is not initialized first; each use is justified.

use std::mem::MaybeUninit;

use gemm::Parallelism;
use rayon::prelude::*;

use super::matrices::{Matrices, size_of};
use super::tiles::{TASK, has_fma};
use crate::memory::apart;
use crate::zero_results::are_zero;

/// Rows of a product below which gemmkit, which packs less, is faster if the right operand is transposed.
const FEW: usize = 64;

/// The most elements of a right operand that is transposed first: 16 MiB in f32.
const TRANSPOSED: usize = 1 << 22;

/// Returns whether gemm is faster here than gemmkit.
fn serves(lhs: &Matrices<f32>, rhs: &Matrices<f32>) -> bool {
    let [rows, inner, cols] = size_of(lhs, rhs);
    has_fma() && !are_zero() && inner > 0 && rows > 1 && cols > 1 && (rows >= FEW || !is_transposed(rhs))
}

/// Returns whether the elements of a column are adjacent.
fn is_transposed(of: &Matrices<f32>) -> bool {
    of.row_stride == 1 && of.col_stride > 1
}

/// Multiplies the pairs of matrices, adds `bias` to each row, and returns the products one after another, by rows; or `None`
/// where gemmkit is faster.
///
/// # Panics
///
/// If the shapes do not fit.
pub fn products(lhs: &Matrices<f32>, rhs: &Matrices<f32>, bias: Option<&[f32]>) -> Option<Vec<f32>> {
    let [rows, inner, cols] = size_of(lhs, rhs);
    assert!(bias.is_none_or(|bias| bias.len() == cols), "products: the bias does not fit");
    if !serves(lhs, rhs) {
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
        spare.chunks_mut(size).enumerate().for_each(|(matrix, out)| write(lhs, rhs, matrix, out, all()));
    }
    // SAFETY: the capacity is at least `length`, and each product above wrote all of its elements.
    unsafe { out.set_len(length) };
    if let Some(bias) = bias {
        out.par_chunks_mut(cols).with_min_len((1 << 14) / cols + 1).for_each(|row| {
            row.iter_mut().zip(bias).for_each(|(to, bias)| *to += bias);
        });
    }
    Some(out)
}

/// Adds the product of the first matrices to `total`, which holds its rows one after another, and returns true; or changes
/// nothing, where gemmkit is faster.
///
/// # Panics
///
/// If the shapes do not fit.
pub fn add_product(lhs: &Matrices<f32>, rhs: &Matrices<f32>, total: &mut [f32]) -> bool {
    let [rows, inner, cols] = size_of(lhs, rhs);
    assert_eq!(Some(total.len()), rows.checked_mul(cols), "products: the sum does not fit");
    if !serves(lhs, rhs) {
        return false;
    }
    let parallelism = match total.len().saturating_mul(inner) < TASK {
        true => Parallelism::None,
        false => all(),
    };
    // SAFETY: the total has the elements of the product, is initialized, and is borrowed mutably.
    unsafe { multiply([lhs, rhs], 0, total.as_mut_ptr(), true, parallelism) };
    true
}

/// All cores.
fn all() -> Parallelism {
    Parallelism::Rayon(rayon::current_num_threads())
}

/// Writes one product.
fn write(
    lhs: &Matrices<f32>,
    rhs: &Matrices<f32>,
    matrix: usize,
    out: &mut [MaybeUninit<f32>],
    parallelism: Parallelism,
) {
    let [rows, inner, cols] = size_of(lhs, rhs);
    assert_eq!(out.len(), rows * cols);
    let to = out.as_mut_ptr().cast();
    let packs_slowly = is_transposed(rhs) && !matches!(parallelism, Parallelism::None) && inner >= cols;
    // SAFETY: there is room for the product, which is written without being read.
    match packs_slowly && rows >= 2 * FEW && inner.saturating_mul(cols) <= TRANSPOSED {
        true => {
            let data = {
                // Like packed operands, the copy is memory of the process, not of the pass.
                let _apart = apart();
                transposed(rhs, matrix)
            };
            let rhs = Matrices::new(&data, [inner, cols], [cols, 1], vec![0; lhs.starts.len()]);
            unsafe { multiply([lhs, &rhs], matrix, to, false, parallelism) };
            let _apart = apart();
            drop(data);
        }
        false => unsafe { multiply([lhs, rhs], matrix, to, false, parallelism) },
    }
}

/// Returns the elements by rows of a matrix whose columns are adjacent.
fn transposed(of: &Matrices<f32>, matrix: usize) -> Vec<f32> {
    /// Rows and columns of a block, which fits the L1 cache twice.
    const EDGE: usize = 16;

    let (rows, cols) = (of.rows, of.cols);
    let mut to = vec![0.0; rows * cols];
    to.par_chunks_mut(EDGE * cols).enumerate().for_each(|(at, to)| {
        let (top, height) = (at * EDGE, to.len() / cols);
        let mut block = [0.0; EDGE * EDGE];
        for left in (0..cols).step_by(EDGE) {
            let width = EDGE.min(cols - left);
            for (col, block) in block.chunks_exact_mut(EDGE).enumerate().take(width) {
                block[..height].copy_from_slice(of.column(matrix, left + col, top..top + height));
            }
            for (row, to) in to.chunks_exact_mut(cols).enumerate() {
                let to = to[left..][..width].iter_mut();
                to.enumerate().for_each(|(col, to)| *to = block[col * EDGE + row]);
            }
        }
    });
    to
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
