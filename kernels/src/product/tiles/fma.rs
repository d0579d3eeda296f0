//! Tiles of bf16 or f16 by AVX2, which multiplies f32: elements are widened as they are packed.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::instructions::{Instructions, Out, TilePlace, Vectors};
use crate::flex::Lane;

/// Multiply-adds of f32 in vectors of eight. A word of a panel is an element in f32.
pub enum Fma {}

/// Rows of a tile.
const ROWS: usize = 6;

/// Columns of a tile: two vectors of sums. With a vector of the right operand for each, and one for an element of the
/// left, 15 of the 16 registers are in use.
const COLUMNS: usize = 16;

/// Sums of a tile, by rows.
#[repr(align(32))]
struct Sums([f32; ROWS * COLUMNS]);

impl<T: Lane> Instructions<T> for Fma {
    const ROWS: usize = ROWS;
    const COLUMNS: usize = COLUMNS;
    const IN_WORD: usize = 1;

    #[target_feature(enable = "avx2,fma")]
    unsafe fn pack_rows(rows: &Vectors<T>, first: usize, panels: &mut [MaybeUninit<u32>]) {
        // SAFETY: the caller's.
        unsafe { pack::<T, ROWS>(rows, first, panels) }
    }

    #[target_feature(enable = "avx2,fma")]
    unsafe fn pack_columns(columns: &Vectors<T>, first: usize, panels: &mut [MaybeUninit<u32>]) {
        // SAFETY: the caller's.
        unsafe { pack::<T, COLUMNS>(columns, first, panels) }
    }

    #[target_feature(enable = "avx2,fma")]
    unsafe fn tile(words: usize, left: *const u32, right: *const u32, out: Out<'_, T>, place: TilePlace) {
        // SAFETY: the caller's.
        unsafe {
            let sums = sums(words, left.cast(), right.cast());
            match out {
                Out::Rounded(to, bias) => round(sums, bias, to, place),
                Out::Wide(to, adds) => store(sums, adds, to, place),
            }
        }
    }
}

/// Writes panels of `WIDTH` vectors in f32. Vectors beyond the last are 0.
///
/// # Safety
///
/// All elements are readable, and `panels` has `WIDTH` numbers for each element of a vector of each panel.
#[inline(always)]
unsafe fn pack<T: Lane, const WIDTH: usize>(
    vectors: &Vectors<T>,
    first: usize,
    panels: &mut [MaybeUninit<u32>],
) {
    let &Vectors { start, count, stride, inner, step } = vectors;
    let (size, present) = (WIDTH * inner, (count - first).min(panels.len() / inner));
    let whole = if stride == 1 { present / WIDTH } else { 0 };
    // SAFETY: the vectors from `first` on, `present` of them, exist; a panel has a row of `WIDTH` for each element.
    unsafe {
        let (start, panels) = (start.add(first * stride), panels.as_mut_ptr().cast::<f32>());
        // Vectors lie side by side, so that a row of each whole panel is adjacent. Going along the storage spares the
        // processor a translation of addresses for every row of every panel.
        for at in 0..inner {
            for panel in 0..whole {
                let (from, to) =
                    (start.add(at * step + panel * WIDTH), panels.add(panel * size + at * WIDTH));
                (0..WIDTH).for_each(|vector| to.add(vector).write((*from.add(vector)).wide()));
            }
        }
        if present % WIDTH > 0 {
            panels.add(present / WIDTH * size).write_bytes(0, size);
        }
        for vector in whole * WIDTH..present {
            let from = start.add(vector * stride);
            let to = panels.add(vector / WIDTH * size + vector % WIDTH);
            match step {
                1 => (0..inner).for_each(|at| to.add(at * WIDTH).write((*from.add(at)).wide())),
                _ => (0..inner).for_each(|at| to.add(at * WIDTH).write((*from.add(at * step)).wide())),
            }
        }
    }
}

/// Sums the tile of two panels.
///
/// # Safety
///
/// The panels have [`ROWS`] and [`COLUMNS`] numbers for each of `words`, and the processor has AVX2 and FMA.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn sums(words: usize, mut left: *const f32, mut right: *const f32) -> Sums {
    let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
    for _ in 0..words {
        // SAFETY: both panels have this word.
        unsafe {
            let columns = [_mm256_loadu_ps(right), _mm256_loadu_ps(right.add(8))];
            for (at, sums) in sums.iter_mut().enumerate() {
                let row = _mm256_broadcast_ss(&*left.add(at));
                sums[0] = _mm256_fmadd_ps(row, columns[0], sums[0]);
                sums[1] = _mm256_fmadd_ps(row, columns[1], sums[1]);
            }
            (left, right) = (left.add(ROWS), right.add(COLUMNS));
        }
    }
    let mut all = Sums([0.0; ROWS * COLUMNS]);
    for (sums, to) in sums.iter().zip(all.0.chunks_exact_mut(COLUMNS)) {
        // SAFETY: a row of the tile is two vectors.
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), sums[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), sums[1]);
        }
    }
    all
}

/// Adds the bias, if any, and writes the sums rounded.
///
/// # Safety
///
/// `to` has room for the place.
#[inline(always)]
unsafe fn round<T: Lane>(
    sums: Sums,
    bias: Option<&[f32]>,
    to: *mut T,
    TilePlace { size, stride }: TilePlace,
) {
    let [rows, columns] = size;
    let mut sums = sums.0;
    if let Some(bias) = bias {
        let bias = &bias[..COLUMNS];
        sums.chunks_exact_mut(COLUMNS).for_each(|row| row.iter_mut().zip(bias).for_each(|(x, y)| *x += y));
    }
    let mut rounded = [T::narrow(0.0); ROWS * COLUMNS];
    rounded.iter_mut().zip(&sums).for_each(|(to, from)| *to = T::narrow(*from));
    for (row, from) in rounded.chunks_exact(COLUMNS).enumerate().take(rows) {
        // SAFETY: the place has this row, of so many columns.
        unsafe { to.add(row * stride).copy_from_nonoverlapping(from.as_ptr(), columns) };
    }
}

/// Writes the sums, or adds them to what is there.
///
/// # Safety
///
/// `to` has room for the place, and is initialized if `adds`.
#[inline(always)]
unsafe fn store(sums: Sums, adds: bool, to: *mut f32, TilePlace { size, stride }: TilePlace) {
    let [rows, columns] = size;
    for (row, from) in sums.0.chunks_exact(COLUMNS).enumerate().take(rows) {
        // SAFETY: the place has this row, of so many columns.
        unsafe {
            let to = to.add(row * stride);
            match adds {
                true => (0..columns).for_each(|at| *to.add(at) += from[at]),
                false => to.copy_from_nonoverlapping(from.as_ptr(), columns),
            }
        }
    }
}
