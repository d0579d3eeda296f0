//! Products of small matrices whose sums stay in the processor's vector registers.
//!
//! The right operand and the product are stored row by row, in whole vectors. An element of the left operand is
//! broadcast to a vector, so the left operand may be stored either way.

use std::array;

use pulp::Simd;

/// Rows of the left operand and of the product that are computed at a time.
pub const ROWS: usize = 8;

/// The left operand of a product, `[rows, depth]`.
pub trait Left: Copy {
    type Block: Copy;

    /// Returns `ROWS` rows from `first`.
    fn rows(self, first: usize, depth: usize) -> Self::Block;

    /// Returns the elements of these rows in column `at`.
    fn column(block: &Self::Block, at: usize) -> [f32; ROWS];
}

/// A matrix that is stored row by row; rows begin `stride` elements apart.
#[derive(Clone, Copy)]
pub struct Straight<'a> {
    pub values: &'a [f32],
    pub stride: usize,
}

impl<'a> Left for Straight<'a> {
    type Block = [&'a [f32]; ROWS];

    #[inline(always)]
    fn rows(self, first: usize, depth: usize) -> Self::Block {
        let mut rows = [&[][..]; ROWS];
        for (at, row) in rows.iter_mut().enumerate() {
            *row = &self.values[(first + at) * self.stride..][..depth];
        }
        rows
    }

    #[inline(always)]
    fn column(block: &Self::Block, at: usize) -> [f32; ROWS] {
        let mut column = [0.0; ROWS];
        for (value, row) in column.iter_mut().zip(block) {
            *value = row[at];
        }
        column
    }
}

/// A matrix that is stored column by column; columns begin `stride` elements apart.
#[derive(Clone, Copy)]
pub struct Turned<'a> {
    pub values: &'a [f32],
    pub stride: usize,
}

impl<'a> Left for Turned<'a> {
    type Block = (&'a [f32], usize);

    #[inline(always)]
    fn rows(self, first: usize, _: usize) -> Self::Block {
        (&self.values[first..], self.stride)
    }

    #[inline(always)]
    fn column(&(values, stride): &Self::Block, at: usize) -> [f32; ROWS] {
        let column = &values[at * stride..][..ROWS];
        array::from_fn(|row| column[row])
    }
}

/// The shape of a product `[rows, depth] · [depth, columns]`.
#[derive(Clone, Copy)]
pub struct Size {
    /// A multiple of [`ROWS`].
    pub rows: usize,
    pub depth: usize,
    /// A multiple of 16, the elements of the widest vectors.
    pub columns: usize,
}

/// Computes `left · right`, and adds it to `out` if `adds`.
#[inline(always)]
pub fn product<S: Simd, L: Left>(simd: S, left: L, right: &[f32], out: &mut [f32], size: Size, adds: bool) {
    let Size { rows, depth, columns } = size;
    let (right, _) = S::as_simd_f32s(&right[..depth * columns]);
    let (out, _) = S::as_mut_simd_f32s(&mut out[..rows * columns]);
    let vectors = columns / S::F32_LANES;
    // A panel of the right operand stays in the L1 cache while all rows of the left one pass.
    let mut at = 0;
    while at + 2 <= vectors {
        for row in (0..rows).step_by(ROWS) {
            block::<S, L, 2>(
                simd,
                left.rows(row, depth),
                right,
                &mut out[row * vectors..],
                [at, vectors, depth],
                adds,
            );
        }
        at += 2;
    }
    if at < vectors {
        for row in (0..rows).step_by(ROWS) {
            block::<S, L, 1>(
                simd,
                left.rows(row, depth),
                right,
                &mut out[row * vectors..],
                [at, vectors, depth],
                adds,
            );
        }
    }
}

/// Computes `ROWS` rows of `N` vectors, `at` vectors from the start of their rows of `vectors` vectors.
#[inline(always)]
fn block<S: Simd, L: Left, const N: usize>(
    simd: S,
    left: L::Block,
    right: &[S::f32s],
    out: &mut [S::f32s],
    place: [usize; 3],
    adds: bool,
) {
    // AVX-512 and NEON have 32 registers. AVX2 has 16, which the sums of all rows would fill without the operands.
    if S::F32_LANES > 8 || cfg!(target_arch = "aarch64") {
        return part::<S, L, ROWS, N>(simd, left, 0, right, out, place, adds);
    }
    part::<S, L, HALF, N>(simd, left, 0, right, out, place, adds);
    part::<S, L, HALF, N>(simd, left, HALF, right, out, place, adds);
}

const HALF: usize = ROWS / 2;

/// Computes `R` of the rows, from the row `first` on.
#[inline(always)]
fn part<S: Simd, L: Left, const R: usize, const N: usize>(
    simd: S,
    left: L::Block,
    first: usize,
    right: &[S::f32s],
    out: &mut [S::f32s],
    [at, vectors, depth]: [usize; 3],
    adds: bool,
) {
    let mut sums = [[simd.splat_f32s(0.0); N]; R];
    if adds {
        for (row, sums) in sums.iter_mut().enumerate() {
            let out = &out[(first + row) * vectors + at..][..N];
            for (sum, out) in sums.iter_mut().zip(out) {
                *sum = *out;
            }
        }
    }
    for step in 0..depth {
        let right = &right[step * vectors + at..][..N];
        let column = L::column(&left, step);
        for row in 0..R {
            let value = simd.splat_f32s(column[first + row]);
            for vector in 0..N {
                sums[row][vector] = simd.mul_add_e_f32s(value, right[vector], sums[row][vector]);
            }
        }
    }
    for (row, sums) in sums.iter().enumerate() {
        let out = &mut out[(first + row) * vectors + at..][..N];
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = *sum;
        }
    }
}
