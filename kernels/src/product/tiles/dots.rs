//! Tiles of bf16 by the processor's dot products of pairs, `vdpbf16ps`.
//!
//! Operands are panels of pairs: two neighbours along the inner axis side by side, as a dot product of pairs reads them.

use std::arch::x86_64::*;
use std::mem::{self, MaybeUninit};

use burn::tensor::bf16;

use super::instructions::{Instructions, Out, TilePlace, Vectors};

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
