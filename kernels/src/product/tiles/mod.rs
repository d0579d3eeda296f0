//! Products in half precision by tiles of our own, where they are faster than gemmkit.
//!
//! Both operands are packed once, as panels: some vectors along the inner axis side by side. A tile of the product sums in
//! registers over the whole inner axis, so an element's bits depend on its row and column alone, not on tiles or threads.
//! It is rounded once, after the bias is added.
//!
//! ```text
//! instructions.rs  what a set of instructions must do to multiply panels of an operand's rows or columns
//! dots.rs          bf16 by dot products of pairs, with AVX512-BF16, and panels of pairs for them
//! fma.rs           bf16 and f16 with AVX2, and panels in f32
//! best.rs          the tiles that are fastest on this processor
//! ```
#![allow(unsafe_code)] // Vector instructions on panels and on memory that is not initialized first; each use is justified.
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code))] // There are no tiles for other processors.

mod best;
#[cfg(target_arch = "x86_64")]
mod dots;
#[cfg(target_arch = "x86_64")]
mod fma;
mod instructions;

use std::iter;
use std::mem::MaybeUninit;

use rayon::prelude::*;

use self::best::Tiles;
use self::instructions::{Instructions, Out, TilePlace, Vectors};
use super::matrices::{Matrices, size_of};
use crate::flex::Lane;
use crate::memory::apart;
use crate::zero_results::are_zero;

pub use best::{Half, has_dots, has_fma, is_avx2_alone};

/// The longest inner axis at which the panels of a task fit the L2 cache.
const INNER: usize = 4096;

/// Returns the tiles that serve a product of these rows, inner elements and columns; others are faster for smaller ones.
fn serving<T: Half>([rows, inner, cols]: [usize; 3]) -> Option<Tiles<T>> {
    T::tiles().filter(|tiles| rows >= tiles.size[0] / 2 && cols >= tiles.size[1] / 2 && inner >= 2)
}

/// Multiplies the pairs of matrices as [`by_gemmkit::products`](super::by_gemmkit::products) does, or returns `None` where tiles do
/// not serve.
///
/// # Panics
///
/// If the shapes do not fit.
pub fn products<T: Half>(lhs: &Matrices<T>, rhs: &Matrices<T>, bias: Option<&[T]>) -> Option<Vec<T>> {
    let size @ [rows, inner, cols] = size_of(lhs, rhs);
    let tiles = serving::<T>(size)?;
    assert!(bias.is_none_or(|bias| bias.len() == cols), "products: the bias does not fit");
    let size = rows.checked_mul(cols).expect("the size of a product fits usize");
    let length = size.checked_mul(lhs.starts.len()).expect("the size of the products fits usize");
    if are_zero() {
        return Some(vec![T::narrow(0.0); length]);
    }
    let mut out = Vec::with_capacity(length);
    let spare: &mut [MaybeUninit<T>] = &mut out.spare_capacity_mut()[..length];
    let bias = bias.map(|bias| {
        let mut wide: Vec<f32> = bias.iter().map(|bias| bias.wide()).collect();
        wide.resize(cols.next_multiple_of(tiles.size[1]), 0.0);
        wide
    });
    let one = |matrix: usize, out: &mut [MaybeUninit<T>], on_all: bool| {
        let operands @ [left, right] = [Vectors::rows(lhs, matrix), Vectors::columns(rhs, matrix)];
        if inner > INNER {
            return write_long(&tiles, operands, bias.as_deref(), out);
        }
        let out = Out::Rounded(out.as_mut_ptr().cast(), bias.as_deref());
        (tiles.compute)(&Product { left, right, out }, on_all);
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
pub fn wide_product<T: Half>(lhs: &Matrices<T>, rhs: &Matrices<T>) -> Option<Vec<f32>> {
    let size @ [rows, _, cols] = size_of(lhs, rhs);
    let length = rows.checked_mul(cols).expect("the size of a product fits usize");
    serving(size).map(|tiles| {
        if are_zero() {
            return vec![0.0; length];
        }
        let mut out = Vec::with_capacity(length);
        // SAFETY: there is room for the product, all of which is written.
        unsafe {
            write_wide(&tiles, [Vectors::rows(lhs, 0), Vectors::columns(rhs, 0)], out.as_mut_ptr(), false);
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
pub fn add_product<T: Half>(lhs: &Matrices<T>, rhs: &Matrices<T>, total: &mut [f32]) -> bool {
    let size @ [rows, _, cols] = size_of(lhs, rhs);
    assert_eq!(Some(total.len()), rows.checked_mul(cols), "products: the sum does not fit");
    let tiles = serving(size);
    if let Some(tiles) = &tiles
        && !are_zero()
    {
        // SAFETY: the total has the elements of the product, is initialized, and is borrowed mutably.
        unsafe {
            write_wide(tiles, [Vectors::rows(lhs, 0), Vectors::columns(rhs, 0)], total.as_mut_ptr(), true);
        }
    }
    tiles.is_some()
}

/// Writes a product in f32, or adds it.
///
/// # Safety
///
/// `to` has room for the product, is initialized if `adds`, and nothing else uses it; tiles serve the product.
unsafe fn write_wide<T: Half>(tiles: &Tiles<T>, operands: [Vectors<T>; 2], to: *mut f32, adds: bool) {
    let [left, right] = operands;
    let inner = left.inner;
    let on_all = left.count.saturating_mul(right.count).saturating_mul(inner) >= TASK;
    for from in (0..inner).step_by(INNER) {
        let [left, right] = operands.map(|vectors| vectors.part(from, INNER.min(inner - from)));
        (tiles.compute)(&Product { left, right, out: Out::Wide(to, adds || from > 0) }, on_all);
    }
}

/// Writes a product of a long inner axis: its sums are added up in f32, and rounded after the last.
fn write_long<T: Half>(
    tiles: &Tiles<T>,
    operands: [Vectors<T>; 2],
    bias: Option<&[f32]>,
    out: &mut [MaybeUninit<T>],
) {
    // Like panels, the sums are memory of the process.
    let _apart = apart();
    let (length, cols) = (out.len(), operands[1].count);
    let mut sums = Vec::with_capacity(length);
    // SAFETY: there is room for the product, all of which is written; tiles serve it.
    unsafe {
        write_wide(tiles, operands, sums.as_mut_ptr(), false);
        sums.set_len(length);
    }
    out.par_chunks_mut(cols).zip(sums.par_chunks(cols)).with_min_len((1 << 13) / cols + 1).for_each(
        |(out, sums)| {
            let bias = bias.map_or(&[][..], |bias| &bias[..cols]).iter().chain(iter::repeat(&0.0));
            out.iter_mut().zip(sums).zip(bias).for_each(|((to, sum), bias)| {
                to.write(T::narrow(sum + bias));
            });
        },
    );
}

/// Multiplications that are worth a task of their own: some tens of microseconds.
pub const TASK: usize = 1 << 21;

/// Panels that are packed together, if they are not so short that even more are.
const PANELS: usize = 8;

/// Words that are worth a task of packing.
const PACKED: usize = 1 << 15;

/// Bytes of the left panels that a task reads for each panel of the right operand.
const LEFT: usize = 1 << 18;

/// One product.
pub struct Product<'a, T> {
    pub left: Vectors<T>,
    pub right: Vectors<T>,
    pub out: Out<'a, T>,
}

impl<T: Lane> Product<'_, T> {
    /// Writes the product by rows, on all cores or on this thread.
    pub fn compute<I: Instructions<T>>(&self, on_all: bool) {
        let words = self.left.inner.div_ceil(I::IN_WORD);
        let (left, right) = {
            // Like gemmkit's panels, they are memory of the process, not of the pass.
            let _apart = apart();
            // SAFETY: a panel has the size, and begins with an existing vector; `Matrices::new` checked that the elements
            // are inside the storage; the processor has the instructions, or there would be no product.
            unsafe {
                (
                    packed(self.left.count, [I::ROWS, words], on_all, |at, to| {
                        I::pack_rows(&self.left, at, to)
                    }),
                    packed(self.right.count, [I::COLUMNS, words], on_all, |at, to| {
                        I::pack_columns(&self.right, at, to)
                    }),
                )
            }
        };
        let (rows, columns) = (self.left.count.div_ceil(I::ROWS), self.right.count.div_ceil(I::COLUMNS));
        // A task is a block of panels by panels.
        let height = (LEFT / (4 * I::ROWS * words)).clamp(1, 8);
        let width = (TASK / (I::IN_WORD * words * height * I::ROWS * I::COLUMNS)).max(1).min(columns);
        let (down, across) = (rows.div_ceil(height), columns.div_ceil(width));
        let block = |at: usize| {
            let (row, column) = (at / across * height, at % across * width);
            for column in column..(column + width).min(columns) {
                for row in row..(row + height).min(rows) {
                    self.tile::<I>(&left, &right, [row, column], words);
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
    fn tile<I: Instructions<T>>(
        &self,
        left: &[MaybeUninit<u32>],
        right: &[MaybeUninit<u32>],
        [row, column]: [usize; 2],
        words: usize,
    ) {
        let left = &left[row * I::ROWS * words..][..I::ROWS * words];
        let right = &right[column * I::COLUMNS * words..][..I::COLUMNS * words];
        let (first, stride) = (column * I::COLUMNS, self.right.count);
        let size = [I::ROWS.min(self.left.count - row * I::ROWS), I::COLUMNS.min(stride - first)];
        // SAFETY: the processor has the instructions, or there would be no product; the slices have a whole panel each,
        // which `packed` has initialized; the tile's rows and columns are inside the product.
        unsafe {
            let out = self.out.at(row * I::ROWS * stride + first, first);
            I::tile(words, left.as_ptr().cast(), right.as_ptr().cast(), out, TilePlace { size, stride });
        }
    }
}

/// Returns the panels of `count` vectors, each of `width` vectors of `words`. `pack` writes some panels, the first of which
/// begins with a vector.
///
/// # Safety
///
/// `pack` initializes every word.
unsafe fn packed(
    count: usize,
    [width, words]: [usize; 2],
    on_all: bool,
    pack: impl Fn(usize, &mut [MaybeUninit<u32>]) + Sync,
) -> Vec<MaybeUninit<u32>> {
    let panel = width * words;
    let length = panel * count.div_ceil(width);
    let mut panels = Vec::with_capacity(length);
    // SAFETY: the elements may be uninitialized.
    unsafe { panels.set_len(length) };
    let together = (PACKED / panel).max(PANELS);
    let pack = |(at, panels): (usize, &mut [MaybeUninit<u32>])| pack(at * together * width, panels);
    match on_all {
        true => panels.par_chunks_mut(together * panel).enumerate().for_each(pack),
        false => pack((0, &mut panels)),
    }
    panels
}
