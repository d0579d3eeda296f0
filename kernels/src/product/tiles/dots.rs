//! Tiles of bf16 by the processor's dot products of pairs, `vdpbf16ps`.

use std::arch::x86_64::*;
use std::mem::{self, MaybeUninit};

use burn::tensor::bf16;

use super::instructions::{Instructions, Out, TilePlace};
use super::vectors::Vectors;

/// Dot products of pairs. A word of a panel is a pair.
pub enum Dots {}

/// Rows of a tile.
const ROWS: usize = 14;

/// Columns of a tile: two vectors of sums. With a vector of the right operand for each, and one for a pair of the left,
/// 31 of the 32 registers are in use.
const COLUMNS: usize = 32;

/// Sums of a tile, by rows.
#[repr(align(64))]
struct Sums([f32; ROWS * COLUMNS]);

impl Instructions<bf16> for Dots {
    const ROWS: usize = ROWS;
    const COLUMNS: usize = COLUMNS;
    const IN_WORD: usize = 2;

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn pack_rows(rows: &Vectors<bf16>, first: usize, panels: &mut [MaybeUninit<u32>]) {
        // SAFETY: the caller's.
        unsafe { rows.pack_all::<ROWS>(first, panels) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn pack_columns(columns: &Vectors<bf16>, first: usize, panels: &mut [MaybeUninit<u32>]) {
        // SAFETY: the caller's.
        unsafe { columns.pack_all::<COLUMNS>(first, panels) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn tile(words: usize, left: *const u32, right: *const u32, out: Out<'_, bf16>, place: TilePlace) {
        let mut sums = Sums::default();
        // SAFETY: the caller's; a bias has a number for each column of the tile.
        unsafe {
            sums.compute(words, left, right);
            match out {
                Out::Rounded(to, bias) => {
                    let bias = bias.map(|bias| bias[..COLUMNS].as_ptr());
                    sums.round(place.size, bias, to, place.stride);
                }
                Out::Wide(to, adds) => sums.store(place.size, adds, to, place.stride),
            }
        }
    }
}

impl Default for Sums {
    fn default() -> Self {
        Self([0.0; ROWS * COLUMNS])
    }
}

impl Sums {
    /// Computes the tile of two panels of this many pairs.
    ///
    /// # Safety
    ///
    /// The panels have [`ROWS`] and [`COLUMNS`] pairs for each of `pairs`, and the processor has AVX-512 with dot products of
    /// bf16.
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn compute(&mut self, pairs: usize, left: *const u32, right: *const u32) {
        let mut sums = [[_mm512_setzero_ps(); 2]; ROWS];
        let (mut left, mut right) = (left.cast::<i32>(), right.cast::<i32>());
        for _ in 0..pairs {
            // SAFETY: both panels have this pair.
            unsafe {
                let columns = [_mm512_loadu_si512(right.cast()), _mm512_loadu_si512(right.add(16).cast())];
                for (at, sums) in sums.iter_mut().enumerate() {
                    let row = _mm512_set1_epi32(*left.add(at));
                    sums[0] = _mm512_dpbf16_ps(sums[0], dots(row), dots(columns[0]));
                    sums[1] = _mm512_dpbf16_ps(sums[1], dots(row), dots(columns[1]));
                }
                (left, right) = (left.add(ROWS), right.add(COLUMNS));
            }
        }
        for (sums, to) in sums.iter().zip(self.0.chunks_exact_mut(COLUMNS)) {
            // SAFETY: a row of the tile is two vectors.
            unsafe {
                _mm512_storeu_ps(to.as_mut_ptr(), sums[0]);
                _mm512_storeu_ps(to.as_mut_ptr().add(16), sums[1]);
            }
        }
    }

    /// Rounds the first rows and columns to bf16 after adding the bias, if any, and writes them to rows `stride` apart.
    ///
    /// # Safety
    ///
    /// `to` has room for these rows and columns, `bias` has [`COLUMNS`] numbers, and the processor has AVX-512 with bf16.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
    unsafe fn round(
        &self,
        [rows, columns]: [usize; 2],
        bias: Option<*const f32>,
        to: *mut bf16,
        stride: usize,
    ) {
        let written = u32::MAX >> (COLUMNS - columns);
        for (row, sums) in self.0.chunks_exact(COLUMNS).enumerate().take(rows) {
            // SAFETY: the mask has the columns that exist.
            unsafe {
                for half in 0..2 {
                    let mut sums = _mm512_loadu_ps(sums.as_ptr().add(16 * half));
                    if let Some(bias) = bias {
                        sums = _mm512_add_ps(sums, _mm512_loadu_ps(bias.add(16 * half)));
                    }
                    let rounded: __m256i = mem::transmute(_mm512_cvtneps_pbh(sums));
                    let to = to.wrapping_add(row * stride + 16 * half);
                    _mm256_mask_storeu_epi16(to.cast(), (written >> (16 * half)) as u16, rounded);
                }
            }
        }
    }

    /// Writes the first rows and columns to rows `stride` apart, or adds them to what is there.
    ///
    /// # Safety
    ///
    /// `to` has room for these rows and columns, which are initialized if they are added to, and the processor has
    /// AVX-512.
    #[target_feature(enable = "avx512f")]
    unsafe fn store(&self, [rows, columns]: [usize; 2], adds: bool, to: *mut f32, stride: usize) {
        let written = u32::MAX >> (COLUMNS - columns);
        for (row, sums) in self.0.chunks_exact(COLUMNS).enumerate().take(rows) {
            for half in 0..2 {
                let mask = (written >> (16 * half)) as u16;
                let to = to.wrapping_add(row * stride + 16 * half);
                // SAFETY: the mask has the columns that exist.
                unsafe {
                    let mut sums = _mm512_loadu_ps(sums.as_ptr().add(16 * half));
                    if adds {
                        sums = _mm512_add_ps(sums, _mm512_maskz_loadu_ps(mask, to));
                    }
                    _mm512_mask_storeu_ps(to, mask, sums);
                }
            }
        }
    }
}

/// Returns the pairs of a vector as bf16.
fn dots(pairs: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes, of which all bits are numbers.
    unsafe { mem::transmute(pairs) }
}
