//! Tiles of a product, whose sums stay in the processor's vector registers.

use std::arch::x86_64::*;
use std::mem;

use burn::tensor::bf16;

/// Rows of a tile.
pub const ROWS: usize = 14;

/// Columns of a tile: two vectors of sums. With a vector of the right operand for each, and one for a pair of the left,
/// 31 of the 32 registers are in use.
pub const COLUMNS: usize = 32;

/// Sums of a tile, by rows.
#[repr(align(64))]
pub struct Sums([f32; ROWS * COLUMNS]);

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
    pub unsafe fn compute(&mut self, pairs: usize, left: *const u32, right: *const u32) {
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
    pub unsafe fn round(
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
    pub unsafe fn store(&self, [rows, columns]: [usize; 2], adds: bool, to: *mut f32, stride: usize) {
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
