//! Operands as panels of pairs: two neighbours along the inner axis side by side, as a dot product of pairs reads them.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use burn::tensor::bf16;

use super::vectors::Vectors;

/// Rows or columns that are turned at a time.
const GROUP: usize = 16;

impl Vectors<bf16> {
    /// The number of pairs of each vector; the last one may have one element only.
    pub fn pairs(&self) -> usize {
        self.inner.div_ceil(2)
    }

    /// Writes panels of `WIDTH` vectors from the vector `first` on, all of which begin with a vector.
    ///
    /// # Safety
    ///
    /// All elements are readable, and the processor has AVX-512 with bytes and words.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    pub unsafe fn pack_all<const WIDTH: usize>(&self, first: usize, panels: &mut [MaybeUninit<u32>]) {
        for (at, panel) in panels.chunks_exact_mut(WIDTH * self.pairs()).enumerate() {
            // SAFETY: the panel has its size; the rest is the caller's.
            unsafe { self.pack::<WIDTH>(first + at * WIDTH, panel.as_mut_ptr().cast()) };
        }
    }

    /// Writes the panel of `WIDTH` vectors that begins with the vector `first`: for each pair, one of each vector.
    /// Vectors and elements beyond the end are 0.
    ///
    /// # Safety
    ///
    /// All elements are readable, `panel` has room for `WIDTH · pairs` pairs, and the processor has AVX-512 with bytes and
    /// words.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn pack<const WIDTH: usize>(&self, first: usize, panel: *mut u32) {
        for group in (0..WIDTH).step_by(GROUP) {
            let width = GROUP.min(WIDTH - group);
            let present = self.count.saturating_sub(first + group).min(width);
            // SAFETY: the group is inside the panel, and `present` vectors from there on exist.
            unsafe {
                let start = self.start.add(if present > 0 { (first + group) * self.stride } else { 0 });
                let to = panel.add(group);
                match (self.step, self.stride) {
                    (1, _) => self.turn::<WIDTH>(start, present, width, to),
                    (_, 1) => self.weave::<WIDTH>(start, present, width, to),
                    _ => self.collect::<WIDTH>(start, present, width, to),
                }
            }
        }
    }

    /// Packs vectors whose elements are adjacent: 16 pairs of 16 vectors are a square, which is transposed.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn turn<const WIDTH: usize>(
        &self,
        start: *const bf16,
        present: usize,
        width: usize,
        to: *mut u32,
    ) {
        let stored = mask(width);
        for from in (0..self.inner).step_by(2 * GROUP) {
            let read = u32::MAX >> (2 * GROUP - (self.inner - from).min(2 * GROUP));
            let mut square = [_mm512_setzero_si512(); GROUP];
            for (at, row) in square.iter_mut().enumerate().take(present) {
                // SAFETY: the mask has the elements of this vector from `from` on.
                *row = unsafe { _mm512_maskz_loadu_epi16(read, start.add(at * self.stride + from).cast()) };
            }
            let pairs = (self.pairs() - from / 2).min(GROUP);
            for (at, column) in transposed(square).into_iter().enumerate().take(pairs) {
                // SAFETY: the mask has the group's part of this pair's row of the panel.
                unsafe { _mm512_mask_storeu_epi32(to.add((from / 2 + at) * WIDTH).cast(), stored, column) };
            }
        }
    }

    /// Packs vectors that lie side by side: two rows of the storage are woven into one of the panel.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn weave<const WIDTH: usize>(
        &self,
        start: *const bf16,
        present: usize,
        width: usize,
        to: *mut u32,
    ) {
        let (read, stored) = (mask(present), mask(width));
        for pair in 0..self.pairs() {
            // SAFETY: the masks have the vectors that exist, and the group's part of this pair's row of the panel.
            unsafe {
                let row = |at: usize| {
                    let there = if at < self.inner { read } else { 0 };
                    let from = start.wrapping_add(at * self.step);
                    _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(there, from.cast()))
                };
                let woven = _mm512_or_si512(row(2 * pair), _mm512_slli_epi32::<16>(row(2 * pair + 1)));
                _mm512_mask_storeu_epi32(to.add(pair * WIDTH).cast(), stored, woven);
            }
        }
    }

    /// Packs vectors of any strides, element by element.
    unsafe fn collect<const WIDTH: usize>(
        &self,
        start: *const bf16,
        present: usize,
        width: usize,
        to: *mut u32,
    ) {
        for pair in 0..self.pairs() {
            for at in 0..width {
                let bits = |element: usize| match at < present && element < self.inner {
                    // SAFETY: the vector and its element exist.
                    true => unsafe {
                        u32::from((*start.add(at * self.stride + element * self.step)).to_bits())
                    },
                    false => 0,
                };
                // SAFETY: the group is inside the panel.
                unsafe { to.add(pair * WIDTH + at).write(bits(2 * pair) | bits(2 * pair + 1) << 16) };
            }
        }
    }
}

/// Returns the mask of the first lanes.
fn mask(lanes: usize) -> u16 {
    if lanes == 0 { 0 } else { u16::MAX >> (GROUP - lanes.min(GROUP)) }
}

/// Transposes a square of 32-bit numbers.
#[target_feature(enable = "avx512f")]
fn transposed(rows: [__m512i; GROUP]) -> [__m512i; GROUP] {
    let mut twos = rows;
    for at in (0..GROUP).step_by(2) {
        twos[at] = _mm512_unpacklo_epi32(rows[at], rows[at + 1]);
        twos[at + 1] = _mm512_unpackhi_epi32(rows[at], rows[at + 1]);
    }
    let mut fours = twos;
    for at in (0..GROUP).step_by(4) {
        fours[at] = _mm512_unpacklo_epi64(twos[at], twos[at + 2]);
        fours[at + 1] = _mm512_unpackhi_epi64(twos[at], twos[at + 2]);
        fours[at + 2] = _mm512_unpacklo_epi64(twos[at + 1], twos[at + 3]);
        fours[at + 3] = _mm512_unpackhi_epi64(twos[at + 1], twos[at + 3]);
    }
    // Each 128-bit lane of `fours[4·i + j]` now has column `4·lane + j` of the rows from `4·i` on.
    let mut columns = fours;
    for at in 0..4 {
        let [a, b, c, d] = [fours[at], fours[4 + at], fours[8 + at], fours[12 + at]];
        let (even, even_below) = (_mm512_shuffle_i32x4::<0x88>(a, b), _mm512_shuffle_i32x4::<0x88>(c, d));
        let (odd, odd_below) = (_mm512_shuffle_i32x4::<0xdd>(a, b), _mm512_shuffle_i32x4::<0xdd>(c, d));
        columns[at] = _mm512_shuffle_i32x4::<0x88>(even, even_below);
        columns[4 + at] = _mm512_shuffle_i32x4::<0x88>(odd, odd_below);
        columns[8 + at] = _mm512_shuffle_i32x4::<0xdd>(even, even_below);
        columns[12 + at] = _mm512_shuffle_i32x4::<0xdd>(odd, odd_below);
    }
    columns
}
