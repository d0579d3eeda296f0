//! Products of matrices in slices, by gemmkit.
#![allow(unsafe_code)] // The product is written to memory that is not initialized first; each block is justified.

use std::mem::MaybeUninit;
use std::sync::Once;

use gemmkit::{BiasDim, FusedScalar, Parallelism};
use rayon::prelude::*;

use super::matrices::Matrices;
use crate::memory::apart;
use crate::zero_results::are_zero;

/// Multiplications that are worth a task of their own: some tens of microseconds.
pub const TASK: usize = 1 << 20;

/// Elements of a vector that one task computes, in a product of a vector and a matrix.
const STRIP: usize = 512;

/// Rows and columns of a block that is one call of gemmkit. A call packs an operand of all columns of its product, and in
/// half precision with a long inner axis sums in an f32 copy of it: for a vocabulary, hundreds of megabytes.
const EDGE: usize = 4096;

/// gemmkit would start threads of its own for products that need few.
fn use_rayons_pool() {
    static OWN_POOLS: Once = Once::new();
    OWN_POOLS.call_once(|| gemmkit::tuning::set_pool_classes(0));
}

/// Multiplies the pairs of matrices, adds `bias` to each row, and returns the products one after another, by rows.
///
/// # Panics
///
/// If the shapes do not fit.
pub fn products<T: FusedScalar>(lhs: &Matrices<T>, rhs: &Matrices<T>, bias: Option<&[T]>) -> Vec<T> {
    use_rayons_pool();
    let (rows, inner, cols) = (lhs.rows, lhs.cols, rhs.cols);
    assert_eq!(inner, rhs.rows, "products: the inner axes differ");
    assert_eq!(lhs.starts.len(), rhs.starts.len(), "products: the numbers of matrices differ");
    assert!(bias.is_none_or(|bias| bias.len() == cols), "products: the bias does not fit");
    let size = rows.checked_mul(cols).expect("the size of a product fits usize");
    let length = size.checked_mul(lhs.starts.len()).expect("the size of the products fits usize");
    if are_zero() {
        return vec![T::ZERO; length];
    }
    let mut out = Vec::with_capacity(length);
    if length == 0 {
        return out;
    }
    if inner == 0 {
        match bias {
            None => out.resize(length, T::ZERO),
            Some(bias) => (0..length / cols).for_each(|_| out.extend_from_slice(bias)),
        }
        return out;
    }
    let spare: &mut [MaybeUninit<T>] = &mut out.spare_capacity_mut()[..length];
    let part = |out: &mut [MaybeUninit<T>], part: Part, parallelism| {
        part.compute(lhs, rhs, bias, out, parallelism);
    };
    let whole = |matrix, out: &mut [MaybeUninit<T>], parallelism| {
        for (row, col) in blocks(rows, cols) {
            let (height, width) = (EDGE.min(rows - row), EDGE.min(cols - col));
            let out = &mut out[row * cols + col..][..(height - 1) * cols + width];
            part(out, Part { matrix, row, col, rows: height, cols: width, stride: cols }, parallelism);
        }
    };
    let all = Parallelism::Rayon(rayon::current_num_threads());
    let work = size.saturating_mul(inner);
    if rows == 1 || cols == 1 {
        // A vector is cut by its length alone, because gemmkit may compute its ends differently on more threads.
        let (strips, tasks) = (size.div_ceil(STRIP), TASK.div_ceil(STRIP.saturating_mul(inner.max(1))));
        let cut = |(matrix, out): (usize, &mut [MaybeUninit<T>])| {
            out.par_chunks_mut(STRIP).with_min_len(tasks).enumerate().for_each(|(strip, out)| {
                let at = strip * STRIP;
                let (row, col) = if rows == 1 { (0, at) } else { (at, 0) };
                let (rows, cols) = if rows == 1 { (1, out.len()) } else { (out.len(), 1) };
                part(out, Part { matrix, row, col, rows, cols, stride: cols }, Parallelism::Serial);
            });
        };
        match strips {
            1 => {
                let tasks = TASK.div_ceil(work.max(1));
                let each = spare.par_chunks_mut(size).with_min_len(tasks).enumerate();
                each.for_each(|(matrix, out)| whole(matrix, out, Parallelism::Serial));
            }
            _ => spare.chunks_mut(size).enumerate().for_each(cut),
        }
    } else if lhs.starts.len() >= 4 || work < TASK {
        let each = spare.par_chunks_mut(size).with_min_len(TASK.div_ceil(work.max(1))).enumerate();
        each.for_each(|(matrix, out)| whole(matrix, out, Parallelism::Serial));
    } else {
        spare.chunks_mut(size).enumerate().for_each(|(matrix, out)| whole(matrix, out, all));
    }
    // SAFETY: the capacity is at least `length`, and the parts above cover each element of each product once: `compute`
    // writes all elements of its part.
    unsafe { out.set_len(length) };
    out
}

/// Adds the product of the first matrices to `total`, which holds its rows one after another.
///
/// # Panics
///
/// If the shapes do not fit.
pub fn add_product(lhs: &Matrices<f32>, rhs: &Matrices<f32>, total: &mut [f32]) {
    use_rayons_pool();
    let (rows, inner, cols) = (lhs.rows, lhs.cols, rhs.cols);
    assert_eq!(inner, rhs.rows, "products: the inner axes differ");
    assert_eq!(Some(total.len()), rows.checked_mul(cols), "products: the sum does not fit");
    if total.is_empty() || inner == 0 {
        return;
    }
    let parallelism = match total.len().saturating_mul(inner) < TASK {
        true => Parallelism::Serial,
        false => Parallelism::Rayon(rayon::current_num_threads()),
    };
    for (row, col) in blocks(rows, cols) {
        let (height, width) = (EDGE.min(rows - row), EDGE.min(cols - col));
        let (a, b) = (lhs.at(0, row, 0), rhs.at(0, 0, col));
        let [a_row, a_col, b_row, b_col] =
            [lhs.row_stride, lhs.col_stride, rhs.row_stride, rhs.col_stride].map(|stride| stride as isize);
        let to = total[row * cols + col..].as_mut_ptr();
        let _apart = apart();
        // SAFETY: `Matrices::new` checked that each element of both operands is inside its slice; strides are not
        // negative. The block of `total` is inside it, is initialized, and is borrowed mutably.
        unsafe {
            gemmkit::gemm_unchecked(
                height,
                inner,
                width,
                1.0,
                a,
                a_row,
                a_col,
                b,
                b_row,
                b_col,
                1.0,
                to,
                cols as isize,
                1,
                parallelism,
            );
        }
    }
}

/// Returns the first row and column of each block of a product.
fn blocks(rows: usize, cols: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).step_by(EDGE).flat_map(move |row| (0..cols).step_by(EDGE).map(move |col| (row, col)))
}

/// A block of one product.
struct Part {
    matrix: usize,
    row: usize,
    col: usize,
    rows: usize,
    cols: usize,
    /// Elements between the rows of the product.
    stride: usize,
}

impl Part {
    /// Writes each element of the block to `out`, which begins with its first and ends with its last element.
    fn compute<T: FusedScalar>(
        &self,
        lhs: &Matrices<T>,
        rhs: &Matrices<T>,
        bias: Option<&[T]>,
        out: &mut [MaybeUninit<T>],
        parallelism: Parallelism,
    ) {
        let &Self { matrix, row, col, rows, cols, stride } = self;
        assert!(row + rows <= lhs.rows && col + cols <= rhs.cols);
        assert!(cols <= stride && out.len() == (rows - 1) * stride + cols);
        let (a, b) = (lhs.at(matrix, row, 0), rhs.at(matrix, 0, col));
        let [a_row, a_col, b_row, b_col] =
            [lhs.row_stride, lhs.col_stride, rhs.row_stride, rhs.col_stride].map(|stride| stride as isize);
        let (to, inner) = (out.as_mut_ptr().cast::<T>(), lhs.cols);
        // gemmkit keeps its panels for the thread's next product.
        let _apart = apart();
        // SAFETY: the assertions above and the one in `Matrices::new` keep each element of both operands inside its
        // slice; strides are not negative. `out` has room for the rows of the block, is borrowed mutably, and so overlaps
        // neither operand nor the bias. It is not read, because `beta` is 0. The bias has one element for each column.
        unsafe {
            match bias {
                None => gemmkit::gemm_unchecked(
                    rows,
                    inner,
                    cols,
                    T::ONE,
                    a,
                    a_row,
                    a_col,
                    b,
                    b_row,
                    b_col,
                    T::ZERO,
                    to,
                    stride as isize,
                    1,
                    parallelism,
                ),
                Some(bias) => gemmkit::gemm_fused_unchecked(
                    rows,
                    inner,
                    cols,
                    T::ONE,
                    a,
                    a_row,
                    a_col,
                    b,
                    b_row,
                    b_col,
                    T::ZERO,
                    to,
                    stride as isize,
                    1,
                    bias[col..col + cols].as_ptr(),
                    BiasDim::PerCol,
                    true,
                    None,
                    parallelism,
                ),
            }
        }
    }
}
