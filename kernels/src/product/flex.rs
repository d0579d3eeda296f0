//! Products of Flex's tensors, of any strides, on all cores.

use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::ops::{FloatTensorOps, ModuleOps};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Element, Flex};
use burn::tensor::{Bytes, DType, FloatDType, Shape, bf16, f16};
use bytemuck::Pod;
use gemmkit::FusedScalar;
use pulp::{Arch, NullaryFnOnce};
use rayon::prelude::*;

use super::matrices::Matrices;
use super::tiles::{self, Half};
use super::{ProductOps, by_gemm, by_gemmkit, of_rows, owns};
use crate::elements::Float;
use crate::flex::{adjacent, tensor};
use crate::half::HalfOps;
use crate::off::Kernel;
use crate::zero_results::are_zero;

impl ProductOps for Flex {
    fn product(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        if !owns(lhs.dtype()) {
            return Self::float_matmul(lhs, rhs);
        }
        multiplied(lhs, rhs, None)
    }

    fn affine(x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self> {
        of_rows::<Self>(x, |rows| match owns(rows.dtype()) {
            true => multiplied(rows, weight, Some(bias)),
            false => Self::linear(rows, weight, Some(bias)),
        })
    }

    fn column_sums(x: FloatTensor<Self>) -> FloatTensor<Self> {
        match x.dtype() {
            _ if Kernel::Products.is_off() => super::column_sums::<Self>(x),
            DType::F32 => column_sums::<f32>(x),
            DType::BF16 => column_sums::<bf16>(x),
            DType::F16 => column_sums::<f16>(x),
            _ => super::column_sums::<Self>(x),
        }
    }
}

fn multiplied(lhs: FlexTensor, rhs: FlexTensor, bias: Option<FlexTensor>) -> FlexTensor {
    match lhs.dtype() {
        DType::F32 => typed::<f32>(lhs, rhs, bias, in_f32),
        DType::BF16 => in_half::<bf16>(lhs, rhs, bias),
        DType::F16 => in_half::<f16>(lhs, rhs, bias),
        dtype => unreachable!("{dtype:?} is Burn's"),
    }
}

/// Multiplies in f32 by what is fastest on this processor.
fn in_f32(lhs: &Matrices<f32>, rhs: &Matrices<f32>, bias: Option<&[f32]>) -> Vec<f32> {
    by_gemm::products(lhs, rhs, bias).unwrap_or_else(|| by_gemmkit::products(lhs, rhs, bias))
}

fn in_half<T: Half + FusedScalar>(lhs: FlexTensor, rhs: FlexTensor, bias: Option<FlexTensor>) -> FlexTensor {
    let by_tiles = typed_if::<T>(lhs.clone(), rhs.clone(), bias.clone(), tiles::products);
    by_tiles.unwrap_or_else(|| match widens_in_registers() {
        true => typed::<T>(lhs, rhs, bias, by_gemmkit::products),
        false => multiplied_in_f32(lhs, rhs, bias),
    })
}

/// Returns whether gemmkit multiplies half precision as fast as f32. With AVX2 it takes 1.4 times as long, and up to
/// twice for the gradient of a weight.
fn widens_in_registers() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512f") && !tiles::is_avx2_alone();
    #[cfg(not(target_arch = "x86_64"))]
    true
}

/// Multiplies copies of the operands in f32.
pub(super) fn multiplied_in_f32(lhs: FlexTensor, rhs: FlexTensor, bias: Option<FlexTensor>) -> FlexTensor {
    let dtype = lhs.dtype();
    let wide = |x| Flex::fast_cast(x, FloatDType::F32);
    let product = typed::<f32>(wide(lhs), wide(rhs), bias.map(wide), in_f32);
    Flex::fast_cast(product, dtype.into())
}

/// Multiplies the pairs of matrices of two tensors.
fn typed<T: Element + Pod>(
    lhs: FlexTensor,
    rhs: FlexTensor,
    bias: Option<FlexTensor>,
    multiply: impl FnOnce(&Matrices<T>, &Matrices<T>, Option<&[T]>) -> Vec<T>,
) -> FlexTensor {
    let product = typed_if::<T>(lhs, rhs, bias, |lhs, rhs, bias| Some(multiply(lhs, rhs, bias)));
    product.expect("the products are there")
}

/// Multiplies the pairs of matrices of two tensors, if `multiply` does: it adds the bias to each row, and returns the
/// products one after another, by rows.
fn typed_if<T: Element + Pod>(
    lhs: FlexTensor,
    rhs: FlexTensor,
    bias: Option<FlexTensor>,
    multiply: impl FnOnce(&Matrices<T>, &Matrices<T>, Option<&[T]>) -> Option<Vec<T>>,
) -> Option<FlexTensor> {
    let (lhs, rhs, bias) = (forwards(lhs), forwards(rhs), bias.map(|bias| bias.to_contiguous()));
    let axes = lhs.layout().num_dims() - 2;
    let dim = |tensor: &FlexTensor, axis: usize| tensor.layout().shape()[axis];
    let mut shape: Vec<usize> = (0..axes)
        .map(|axis| match (dim(&lhs, axis), dim(&rhs, axis)) {
            (1, size) | (size, _) => size,
        })
        .collect();
    let rows = joined_rows(lhs.layout(), rhs.layout());
    let leading = if rows.is_some() { vec![1; axes] } else { shape.clone() };
    let left = matrices::<T>(&lhs, &leading, rows);
    let right = matrices::<T>(&rhs, &leading, None);
    let bias = bias.as_ref().map(|bias| {
        let layout = bias.layout();
        &bias.storage::<T>()[layout.start_offset()..][..layout.num_elements()]
    });
    let out = multiply(&left, &right, bias)?;
    shape.extend([dim(&lhs, axes), dim(&rhs, axes + 1)]);
    Some(FlexTensor::new(Bytes::from_elems(out), Layout::contiguous(Shape::from(shape)), T::dtype()))
}

/// Multiplies `[m, k]` and `[k, n]`, in f32 or bf16, into f32 without rounding.
pub(crate) fn wide_product(lhs: FlexTensor, rhs: FlexTensor) -> FlexTensor {
    let wide = |x| Flex::fast_cast(x, FloatDType::F32);
    if Kernel::Products.is_off() {
        return Flex::float_matmul(wide(lhs), wide(rhs));
    }
    let (lhs, rhs) = (forwards(lhs), forwards(rhs));
    if lhs.dtype() == DType::BF16 {
        let shape = Shape::new([lhs.layout().shape()[0], rhs.layout().shape()[1]]);
        let [left, right] = [&lhs, &rhs].map(|x| matrices::<bf16>(x, &[], None));
        if let Some(product) = tiles::wide_product(&left, &right) {
            return tensor(product, shape);
        }
    }
    typed::<f32>(wide(lhs), wide(rhs), None, in_f32)
}

/// Adds the product of `[m, k]` and `[k, n]`, in f32 or bf16, to `total`, `[m, n]` in f32, in place unless others read `total`.
/// Burn has no such operation: the product would be a second matrix, and the sum one more pass over both.
///
/// # Panics
///
/// If the shapes do not fit.
pub(crate) fn add_product(total: FlexTensor, lhs: FlexTensor, rhs: FlexTensor) -> FlexTensor {
    if Kernel::Products.is_off() {
        return Flex::float_add(total, wide_product(lhs, rhs));
    }
    let (mut total, lhs, rhs) = (adjacent(total), forwards(lhs), forwards(rhs));
    let [rows, cols]: [usize; 2] = total.layout().shape().dims();
    assert_eq!([rows, cols], [lhs.layout().shape()[0], rhs.layout().shape()[1]], "the sum's shape differs");
    let start = total.layout().start_offset();
    let sum = &mut total.storage_mut::<f32>()[start..][..rows * cols];
    if lhs.dtype() == DType::BF16 {
        let [left, right] = [&lhs, &rhs].map(|x| matrices::<bf16>(x, &[], None));
        if tiles::add_product(&left, &right, sum) {
            return total;
        }
    }
    let [lhs, rhs] = [lhs, rhs].map(|x| Flex::fast_cast(x, FloatDType::F32));
    let [left, right] = [&lhs, &rhs].map(|x| matrices::<f32>(x, &[], None));
    if !are_zero() && !by_gemm::add_product(&left, &right, sum) {
        by_gemmkit::add_product(&left, &right, sum);
    }
    total
}

/// Copies a tensor that is read backwards along an axis, as after `flip`.
fn forwards(x: FlexTensor) -> FlexTensor {
    if x.layout().strides().iter().any(|&stride| stride < 0) { x.to_contiguous() } else { x }
}

/// Returns the number and the stride of the rows of all matrices together, if they are evenly spaced and multiplied by
/// one matrix: then one product replaces many.
fn joined_rows(lhs: &Layout, rhs: &Layout) -> Option<(usize, usize)> {
    let axes = lhs.num_dims() - 2;
    if axes == 0 || rhs.shape().iter().take(axes).any(|&size| size != 1) {
        return None;
    }
    let (mut rows, mut stride) = (1, 1);
    for axis in (0..=axes).rev().filter(|&axis| lhs.shape()[axis] != 1) {
        let (size, step) = (lhs.shape()[axis], lhs.strides()[axis] as usize);
        if rows == 1 {
            stride = step;
        } else if step != rows * stride {
            return None;
        }
        rows *= size;
    }
    Some((rows, stride))
}

/// Returns the matrices of the last two axes for each index of `leading`, to which axes of size 1 are broadcast. `rows`
/// are the number and the stride of their rows, if these differ from the layout's.
fn matrices<'a, T: Element + Pod>(
    x: &'a FlexTensor,
    leading: &[usize],
    rows: Option<(usize, usize)>,
) -> Matrices<'a, T> {
    let (shape, strides) = (x.layout().shape(), x.layout().strides());
    let axes = leading.len();
    let mut starts = vec![x.layout().start_offset()];
    for axis in 0..axes {
        let stride = if shape[axis] == 1 { 0 } else { strides[axis] as usize };
        let steps = 0..leading[axis];
        starts = starts.iter().flat_map(|start| steps.clone().map(move |at| start + at * stride)).collect();
    }
    let (rows, row_stride) = rows.unwrap_or((shape[axes], strides[axes] as usize));
    let size = [rows, shape[axes + 1]];
    Matrices::new(x.storage(), size, [row_stride, strides[axes + 1] as usize], starts)
}

/// Rows that one task sums. A fixed number, so that the sums do not depend on the number of threads.
const ROWS: usize = 32;

/// Columns summed at a time.
const COLS: usize = 256;

/// Sums `[rows, cols]` over its rows, to `[cols]`, in f32, and rounds once.
pub fn column_sums<T: Float>(x: FlexTensor) -> FlexTensor {
    let x = if x.layout().strides()[1] == 1 && x.layout().strides()[0] >= 0 { x } else { x.to_contiguous() };
    let (rows, cols) = (x.layout().shape()[0], x.layout().shape()[1]);
    if are_zero() {
        return tensor(vec![T::default(); cols], Shape::new([cols]));
    }
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
        let mut room = T::ROOM;
        for row in self.rows {
            for (sum, x) in self.sums[..row.len()].iter_mut().zip(T::widened(row, &mut room)) {
                *sum += x;
            }
        }
    }
}
