//! Sums over the rows of a matrix, on all cores.

use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::{Bytes, Shape};
use pulp::{Arch, NullaryFnOnce};
use rayon::prelude::*;

use crate::elements::Float;

/// Rows that one task sums. A fixed number, so that the sums do not depend on the number of threads.
const ROWS: usize = 32;

/// Columns summed at a time.
const COLS: usize = 256;

/// Sums `[rows, cols]` over its rows, to `[cols]`, in f32, and rounds once.
pub fn column_sums<T: Float>(x: FlexTensor) -> FlexTensor {
    let x = if x.layout().strides()[1] == 1 && x.layout().strides()[0] >= 0 { x } else { x.to_contiguous() };
    let (rows, cols) = (x.layout().shape()[0], x.layout().shape()[1]);
    let (start, stride) = (x.layout().start_offset(), x.layout().strides()[0] as usize);
    let data = x.storage::<T>();
    let arch = Arch::new();
    let mut sums = vec![0.0; cols];
    // Wide matrices have many tasks side by side, tall ones below each other.
    let height = rows.div_ceil(ROWS).clamp(1, 64);
    let height = rows.div_ceil(height).max(1);
    let tasks = (1 << 14) / (COLS * height).max(1);
    let mut partial = vec![[0.0f32; COLS]; rows.div_ceil(height) * cols.div_ceil(COLS)];
    let across = cols.div_ceil(COLS).max(1);
    partial.par_iter_mut().with_min_len(tasks.max(1)).enumerate().for_each(|(task, sums)| {
        let (top, left) = (task / across * height, task % across * COLS);
        let width = COLS.min(cols - left);
        let rows = (top..(top + height).min(rows)).map(|row| &data[start + row * stride + left..][..width]);
        arch.dispatch(Add { rows, sums });
    });
    for (task, partial) in partial.iter().enumerate() {
        let left = task % across * COLS;
        for (sum, partial) in sums[left..].iter_mut().zip(partial) {
            *sum += partial;
        }
    }
    let mut out = vec![T::default(); cols];
    T::narrow(&sums, &mut out);
    FlexTensor::new(Bytes::from_elems(out), Layout::contiguous(Shape::new([cols])), T::dtype())
}

/// Adds rows to sums, compiled for the vectors of each kind of processor.
struct Add<'a, R> {
    rows: R,
    sums: &'a mut [f32; COLS],
}

impl<'a, T: Float + 'a, R: Iterator<Item = &'a [T]>> NullaryFnOnce for Add<'_, R> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        let mut wide = [0.0; COLS];
        for row in self.rows {
            T::widen(row, &mut wide[..row.len()]);
            for (sum, x) in self.sums[..row.len()].iter_mut().zip(&wide) {
                *sum += x;
            }
        }
    }
}
