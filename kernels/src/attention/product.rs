//! Products of small matrices whose sums stay in the processor's vector registers.
//!
//! The right operand and the product are stored row by row, in whole vectors. An element of the left operand is
//! broadcast to a vector, so the left operand may be stored either way.
#![allow(unsafe_code)] // The innermost loop would spend more on checks of bounds than on sums; each block is justified.

use pulp::Simd;

/// What the number of rows of a product is a multiple of.
pub const ROWS: usize = 8;

/// The left operand of a product, `[rows, depth]`.
pub trait LeftOperand: Copy {
    /// Returns the elements, and how many of them lie from a row to the next one and from a column to the next one.
    fn matrix(&self) -> (&[f32], [usize; 2]);
}

/// A matrix that is stored row by row; rows begin `stride` elements apart.
#[derive(Clone, Copy)]
pub struct Straight<'a> {
    pub values: &'a [f32],
    pub stride: usize,
}

impl LeftOperand for Straight<'_> {
    #[inline(always)]
    fn matrix(&self) -> (&[f32], [usize; 2]) {
        (self.values, [self.stride, 1])
    }
}

/// A matrix that is stored column by column; columns begin `stride` elements apart.
#[derive(Clone, Copy)]
pub struct Turned<'a> {
    pub values: &'a [f32],
    pub stride: usize,
}

impl LeftOperand for Turned<'_> {
    #[inline(always)]
    fn matrix(&self) -> (&[f32], [usize; 2]) {
        (self.values, [1, self.stride])
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
///
/// # Panics
///
/// If an operand or `out` has fewer elements than `size` says, or its rows are no multiple of [`ROWS`].
#[inline(always)]
pub fn product<S: Simd, L: LeftOperand>(
    simd: S,
    left: L,
    right: &[f32],
    out: &mut [f32],
    size: Size,
    adds: bool,
) {
    let Size { rows, depth, columns } = size;
    let (values, strides) = left.matrix();
    assert!(rows.is_multiple_of(ROWS) && columns.is_multiple_of(S::F32_LANES));
    if rows > 0 && depth > 0 {
        assert!((rows - 1) * strides[0] + (depth - 1) * strides[1] < values.len());
    }
    let (right, _) = S::as_simd_f32s(&right[..depth * columns]);
    let (out, _) = S::as_mut_simd_f32s(&mut out[..rows * columns]);
    let vectors = columns / S::F32_LANES;
    // A panel of the right operand stays in the L1 cache while all rows of the left one pass.
    for at in (0..vectors).step_by(2) {
        let mut row = 0;
        while row < rows {
            let panel = Panel {
                left: values.as_ptr().wrapping_add(row * strides[0]),
                strides,
                right: right.as_ptr().wrapping_add(at),
                depth,
                vectors,
            };
            let to = out.as_mut_ptr().wrapping_add(row * vectors + at);
            let rest = rows - row;
            // SAFETY: the operands have the elements of `size`, as asserted above, and of these the panel reads rows from
            // `row` and vectors from `at` on; `rows` takes no more rows than `rest`. `out` has a vector for each.
            row += unsafe {
                match at + 2 <= vectors {
                    true => panel.rows::<S, 2>(simd, rest, to, adds),
                    false => panel.rows::<S, 1>(simd, rest, to, adds),
                }
            };
        }
    }
}

/// Rows of the left operand, and columns of the right one.
#[derive(Clone, Copy)]
struct Panel<V> {
    left: *const f32,
    /// Elements from a row of the left operand to the next one, and from a column to the next one.
    strides: [usize; 2],
    right: *const V,
    depth: usize,
    /// Vectors of a row of the right operand and of the product.
    vectors: usize,
}

impl<V: Copy> Panel<V> {
    /// Computes as many of the next `rest` rows as the registers hold, of `N` vectors each, and returns their number.
    ///
    /// # Safety
    ///
    /// As for [`tile`](Self::tile), for `rest` rows. `rest` is a multiple of [`ROWS`] less what calls before it returned.
    #[inline(always)]
    unsafe fn rows<S: Simd<f32s = V>, const N: usize>(
        self,
        simd: S,
        rest: usize,
        to: *mut V,
        adds: bool,
    ) -> usize {
        // SAFETY: the caller's.
        unsafe {
            // AVX-512 and NEON have 32 registers, and AVX2 has 16: sums of six rows, two vectors of the right operand, and an
            // element of the left one. Six rows at a time leave four, or eight, which are twice four.
            if S::F32_LANES > 8 || cfg!(target_arch = "aarch64") {
                self.tile::<S, ROWS, N>(simd, to, adds);
                ROWS
            } else if rest == 4 || rest == 8 {
                self.tile::<S, 4, N>(simd, to, adds);
                4
            } else {
                self.tile::<S, 6, N>(simd, to, adds);
                6
            }
        }
    }

    /// Computes `R` rows of `N` vectors.
    ///
    /// # Safety
    ///
    /// The operands have these rows and these vectors, and `depth` elements along the inner axis; `to` has so many rows of
    /// the product, and nothing else uses it.
    #[inline(always)]
    unsafe fn tile<S: Simd<f32s = V>, const R: usize, const N: usize>(self, simd: S, to: *mut V, adds: bool) {
        let Self { left, strides: [row_stride, column_stride], right, depth, vectors } = self;
        let mut sums = [[simd.splat_f32s(0.0); N]; R];
        if adds {
            for (row, sums) in sums.iter_mut().enumerate() {
                for (at, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: the caller's.
                    *sum = unsafe { *to.add(row * vectors + at) };
                }
            }
        }
        for step in 0..depth {
            let mut columns = [simd.splat_f32s(0.0); N];
            for (at, column) in columns.iter_mut().enumerate() {
                // SAFETY: the caller's.
                *column = unsafe { *right.add(step * vectors + at) };
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                // SAFETY: the caller's.
                let value = simd.splat_f32s(unsafe { *left.add(row * row_stride + step * column_stride) });
                for (sum, column) in sums.iter_mut().zip(columns) {
                    *sum = simd.mul_add_e_f32s(value, column, *sum);
                }
            }
        }
        for (row, sums) in sums.iter().enumerate() {
            for (at, sum) in sums.iter().enumerate() {
                // SAFETY: the caller's.
                unsafe { *to.add(row * vectors + at) = *sum };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pulp::{Arch, WithSimd};

    use super::*;

    struct Computed<'a, L> {
        left: L,
        right: &'a [f32],
        out: &'a mut [f32],
        size: Size,
        adds: bool,
    }

    impl<L: LeftOperand> WithSimd for Computed<'_, L> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            product(simd, self.left, self.right, self.out, self.size, self.adds);
        }
    }

    /// Whole numbers, whose sums are exact in any order.
    fn wholes(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|at| ((at * 7 + seed) % 11) as f32 - 5.0).collect()
    }

    #[test]
    fn each_number_of_rows_is_divided_into_tiles_without_a_gap() {
        for rows in (0..=64).step_by(ROWS) {
            for (depth, columns) in [(0, 16), (1, 16), (5, 32), (33, 48)] {
                let size = Size { rows, depth, columns };
                let (straight, right) = (wholes(rows * depth, 1), wholes(depth * columns, 2));
                let turned: Vec<f32> =
                    (0..rows * depth).map(|at| straight[at % rows * depth + at / rows]).collect();
                let before = wholes(rows * columns, 3);
                for adds in [false, true] {
                    let sum = |at: usize| {
                        let (row, column) = (at / columns, at % columns);
                        let terms = (0..depth)
                            .map(|step| straight[row * depth + step] * right[step * columns + column]);
                        terms.sum::<f32>() + if adds { before[at] } else { 0.0 }
                    };
                    let expected: Vec<f32> = (0..rows * columns).map(sum).collect();
                    let mut out = [before.clone(), before.clone()];
                    let [first, second] = &mut out;
                    let (values, right) = (&straight[..], &right[..]);
                    let left = Straight { values, stride: depth };
                    Arch::new().dispatch(Computed { left, right, out: first, size, adds });
                    let left = Turned { values: &turned, stride: rows };
                    Arch::new().dispatch(Computed { left, right, out: second, size, adds });
                    assert_eq!(
                        out,
                        [expected.clone(), expected],
                        "[{rows}, {depth}] · [{depth}, {columns}], {adds}"
                    );
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "assertion failed")]
    fn a_left_operand_that_is_too_short_is_refused() {
        let (values, right, mut out) = (wholes(8 * 4 - 1, 1), wholes(4 * 16, 2), vec![0.0; 8 * 16]);
        let size = Size { rows: 8, depth: 4, columns: 16 };
        let left = Straight { values: &values, stride: 4 };
        Arch::new().dispatch(Computed { left, right: &right, out: &mut out, size, adds: false });
    }
}
