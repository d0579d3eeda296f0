//! Products in bf16 by the processor's dot products of pairs, `vdpbf16ps`.
//!
//! Both operands are packed once, as panels of pairs along the inner axis. A tile of the product sums in registers over
//! the whole inner axis, so an element's bits depend on its row and column alone, not on tiles or threads. It is rounded
//! once, after the bias is added.
//!
//! ```text
//! pack.rs    operands as panels
//! tile.rs    tiles of the product
//! ```
#![allow(unsafe_code)] // Vector instructions on panels and on memory that is not initialized first; each use is justified.

mod pack;
mod tile;

use std::mem::MaybeUninit;
use std::sync::LazyLock;

use burn::tensor::bf16;
use rayon::prelude::*;

use self::pack::Vectors;
use self::tile::{COLUMNS, ROWS, Sums};
use super::gemm::Matrices;
use crate::memory::apart;

/// Multiplications that are worth a task of their own: some tens of microseconds.
const TASK: usize = 1 << 21;

/// The longest inner axis, of which the panels of a task stay in the second cache.
const INNER: usize = 4096;

/// Bytes of the left panels that a task reads for each panel of the right operand.
const LEFT: usize = 1 << 18;

/// Returns whether the processor has these instructions. If the user names an instruction set for gemmkit, the answer is
/// no, so that the named one is used.
pub fn has_dots() -> bool {
    static HAS_DOTS: LazyLock<bool> = LazyLock::new(|| {
        let has = is_x86_feature_detected!("avx512bf16")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl");
        has && std::env::var_os("GEMMKIT_REQUIRE_ISA").is_none()
    });
    *HAS_DOTS
}

/// Returns whether tiles serve a product of these rows, inner elements and columns; gemmkit is faster for smaller ones.
fn serves([rows, inner, cols]: [usize; 3]) -> bool {
    rows >= ROWS / 2 && cols >= COLUMNS / 2 && inner >= 2 && has_dots()
}

/// Multiplies the pairs of matrices as [`gemm::products`](super::gemm::products) does, or returns `None` if gemmkit is
/// faster or the processor has no such instructions.
///
/// # Panics
///
/// If the shapes do not fit.
pub fn products(
    lhs: &Matrices<'_, bf16>,
    rhs: &Matrices<'_, bf16>,
    bias: Option<&[bf16]>,
) -> Option<Vec<bf16>> {
    let size @ [rows, inner, cols] = size_of(lhs, rhs);
    if !serves(size) || inner > INNER {
        return None;
    }
    assert!(bias.is_none_or(|bias| bias.len() == cols), "products: the bias does not fit");
    let size = rows.checked_mul(cols).expect("the size of a product fits usize");
    let length = size.checked_mul(lhs.starts.len()).expect("the size of the products fits usize");
    let mut out = Vec::with_capacity(length);
    let spare: &mut [MaybeUninit<bf16>] = &mut out.spare_capacity_mut()[..length];
    let bias = bias.map(|bias| {
        let mut wide: Vec<f32> = bias.iter().map(|bias| bias.to_f32()).collect();
        wide.resize(cols.next_multiple_of(COLUMNS), 0.0);
        wide
    });
    let one = |matrix: usize, out: &mut [MaybeUninit<bf16>], on_all: bool| {
        let [left, right] = [lhs.vectors(matrix, false), rhs.vectors(matrix, true)];
        Product { left, right, out: Out::Rounded(out.as_mut_ptr().cast(), bias.as_deref()) }.compute(on_all);
    };
    let work = size.saturating_mul(inner);
    if lhs.starts.len() >= 4 || work < TASK {
        let each = spare.par_chunks_mut(size).with_min_len(TASK.div_ceil(work)).enumerate();
        each.for_each(|(matrix, out)| one(matrix, out, false));
    } else {
        spare.chunks_mut(size).enumerate().for_each(|(matrix, out)| one(matrix, out, true));
    }
    // SAFETY: the capacity is at least `length`, and each product above wrote all of its elements.
    unsafe { out.set_len(length) };
    Some(out)
}

/// Multiplies the first matrices into f32, without rounding, or returns `None` where tiles do not serve.
///
/// # Panics
///
/// If the shapes do not fit.
pub fn wide_product(lhs: &Matrices<'_, bf16>, rhs: &Matrices<'_, bf16>) -> Option<Vec<f32>> {
    let size @ [rows, _, cols] = size_of(lhs, rhs);
    let length = rows.checked_mul(cols).expect("the size of a product fits usize");
    serves(size).then(|| {
        let mut out = Vec::with_capacity(length);
        // SAFETY: there is room for the product, all of which is written.
        unsafe {
            write_wide(lhs, rhs, out.as_mut_ptr(), false);
            out.set_len(length);
        }
        out
    })
}

/// Adds the product of the first matrices to `total`, which holds its rows one after another, and returns true. Where
/// tiles do not serve, it changes nothing and returns false.
///
/// # Panics
///
/// If the shapes do not fit.
pub fn add_product(lhs: &Matrices<'_, bf16>, rhs: &Matrices<'_, bf16>, total: &mut [f32]) -> bool {
    let size @ [rows, _, cols] = size_of(lhs, rhs);
    assert_eq!(Some(total.len()), rows.checked_mul(cols), "products: the sum does not fit");
    let served = serves(size);
    if served {
        // SAFETY: the total has the elements of the product, is initialized, and is borrowed mutably.
        unsafe { write_wide(lhs, rhs, total.as_mut_ptr(), true) };
    }
    served
}

/// Writes a product in f32, or adds it.
///
/// # Safety
///
/// `to` has room for the product, is initialized if `adds`, and nothing else uses it; tiles serve the product.
unsafe fn write_wide(lhs: &Matrices<'_, bf16>, rhs: &Matrices<'_, bf16>, to: *mut f32, adds: bool) {
    let [rows, inner, cols] = size_of(lhs, rhs);
    let on_all = rows.saturating_mul(cols).saturating_mul(inner) >= TASK;
    for from in (0..inner).step_by(INNER) {
        let length = INNER.min(inner - from);
        let [left, right] = [lhs.vectors(0, false), rhs.vectors(0, true)].map(|all| all.part(from, length));
        Product { left, right, out: Out::Wide(to, adds || from > 0) }.compute(on_all);
    }
}

/// Returns the rows, the inner elements and the columns of products.
fn size_of(lhs: &Matrices<'_, bf16>, rhs: &Matrices<'_, bf16>) -> [usize; 3] {
    assert_eq!(lhs.cols, rhs.rows, "products: the inner axes differ");
    assert_eq!(lhs.starts.len(), rhs.starts.len(), "products: the numbers of matrices differ");
    [lhs.rows, lhs.cols, rhs.cols]
}

impl Matrices<'_, bf16> {
    /// Returns the rows of a matrix as vectors, or its columns.
    fn vectors(&self, matrix: usize, columns: bool) -> Vectors {
        let &Self { rows, cols, row_stride, col_stride, .. } = self;
        let start = self.at(matrix, 0, 0);
        match columns {
            true => Vectors { start, count: cols, stride: col_stride, inner: rows, step: row_stride },
            false => Vectors { start, count: rows, stride: row_stride, inner: cols, step: col_stride },
        }
    }
}

/// The first element of a product, and how it is written.
#[derive(Clone, Copy)]
enum Out<'a> {
    /// Rounded, after the bias is added: in f32, with zeros up to a whole tile.
    Rounded(*mut bf16, Option<&'a [f32]>),
    /// In f32. If true, the product is added to what is there.
    Wide(*mut f32, bool),
}

// SAFETY: threads write tiles, no two of which overlap.
unsafe impl Send for Out<'_> {}
// SAFETY: as above.
unsafe impl Sync for Out<'_> {}

/// One product.
struct Product<'a> {
    left: Vectors,
    right: Vectors,
    out: Out<'a>,
}

impl Product<'_> {
    /// Writes the product by rows, on all cores or on this thread.
    fn compute(&self, on_all: bool) {
        let (left, right) = {
            // Like gemmkit's panels, they are memory of the process, not of the pass.
            let _apart = apart();
            (packed::<ROWS>(&self.left, on_all), packed::<COLUMNS>(&self.right, on_all))
        };
        let (rows, columns) = (self.left.count.div_ceil(ROWS), self.right.count.div_ceil(COLUMNS));
        let pairs = self.left.pairs();
        // A task is a block of panels by panels.
        let height = (LEFT / (4 * ROWS * pairs)).clamp(1, 8);
        let width = (TASK / (2 * pairs * height * ROWS * COLUMNS)).max(1).min(columns);
        let (down, across) = (rows.div_ceil(height), columns.div_ceil(width));
        let block = |at: usize| {
            let (row, column) = (at / across * height, at % across * width);
            for column in column..(column + width).min(columns) {
                for row in row..(row + height).min(rows) {
                    self.tile(&left, &right, [row, column]);
                }
            }
        };
        match on_all {
            true => (0..down * across).into_par_iter().for_each(block),
            false => (0..down * across).for_each(block),
        }
        let _apart = apart();
        drop((left, right));
    }

    /// Computes the tile of two panels.
    fn tile(&self, left: &[MaybeUninit<u32>], right: &[MaybeUninit<u32>], [row, column]: [usize; 2]) {
        let pairs = self.left.pairs();
        let left = &left[row * ROWS * pairs..][..ROWS * pairs];
        let right = &right[column * COLUMNS * pairs..][..COLUMNS * pairs];
        let (first, of_row) = (column * COLUMNS, self.right.count);
        let size = [ROWS.min(self.left.count - row * ROWS), COLUMNS.min(of_row - first)];
        let start = row * ROWS * of_row + first;
        let mut sums = Sums::default();
        // SAFETY: the processor has the instructions, or there would be no product; the slices have a whole panel each,
        // which `packed` has initialized; the tile's rows and columns are inside the product.
        unsafe {
            sums.compute(pairs, left.as_ptr().cast(), right.as_ptr().cast());
            match self.out {
                Out::Rounded(to, bias) => {
                    let bias = bias.map(|bias| bias[first..][..COLUMNS].as_ptr());
                    sums.round(size, bias, to.add(start), of_row);
                }
                Out::Wide(to, adds) => sums.store(size, adds, to.add(start), of_row),
            }
        }
    }
}

/// Returns the panels of an operand, all initialized.
fn packed<const WIDTH: usize>(vectors: &Vectors, on_all: bool) -> Vec<MaybeUninit<u32>> {
    let panel = WIDTH * vectors.pairs();
    let length = panel * vectors.count.div_ceil(WIDTH);
    let mut panels = Vec::with_capacity(length);
    // SAFETY: the elements may be uninitialized.
    unsafe { panels.set_len(length) };
    let pack = |(at, panel): (usize, &mut [MaybeUninit<u32>])| {
        // SAFETY: `Matrices::new` checked that the elements are inside the storage, the panel has its size, and the
        // processor has the instructions, or there would be no product.
        unsafe { vectors.pack::<WIDTH>(at * WIDTH, panel.as_mut_ptr().cast()) }
    };
    match on_all {
        true => {
            panels.par_chunks_mut(panel).with_min_len(1.max((1 << 15) / panel)).enumerate().for_each(pack)
        }
        false => panels.chunks_mut(panel).enumerate().for_each(pack),
    }
    panels
}
