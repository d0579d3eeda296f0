//! Products of Flex's tensors, of any strides, on all cores.

use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Element, Flex};
use burn::tensor::{Bytes, DType, FloatDType, Shape, bf16, f16};
use bytemuck::Pod;
use gemmkit::FusedScalar;

use super::gemm::{self, Matrices};
use super::ops::Products;
use super::sums::column_sums;
use crate::flex::{adjacent, tensor};
use crate::half::HalfOps;

impl Products for Flex {
    fn owns(dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::BF16 | DType::F16)
    }

    fn product(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        multiplied(lhs, rhs, None)
    }

    fn affine(x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self> {
        multiplied(x, weight, Some(bias))
    }

    fn column_sums(x: FloatTensor<Self>) -> FloatTensor<Self> {
        match x.dtype() {
            DType::F32 => column_sums::<f32>(x),
            DType::BF16 => column_sums::<bf16>(x),
            DType::F16 => column_sums::<f16>(x),
            _ => super::ops::column_sums::<Self>(x),
        }
    }
}

fn multiplied(lhs: FlexTensor, rhs: FlexTensor, bias: Option<FlexTensor>) -> FlexTensor {
    match lhs.dtype() {
        DType::BF16 | DType::F16 if !widens_in_registers() => multiplied_in_f32(lhs, rhs, bias),
        DType::F32 => typed::<f32>(lhs, rhs, bias),
        DType::BF16 => typed::<bf16>(lhs, rhs, bias),
        DType::F16 => typed::<f16>(lhs, rhs, bias),
        dtype => unreachable!("{dtype:?} is Burn's"),
    }
}

/// Returns whether a product in half precision is as fast as in f32. With AVX2 it takes 1.4 times as long, and up to
/// twice for the gradient of a weight.
fn widens_in_registers() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    true
}

/// Multiplies copies of the operands in f32.
pub(super) fn multiplied_in_f32(lhs: FlexTensor, rhs: FlexTensor, bias: Option<FlexTensor>) -> FlexTensor {
    let dtype = lhs.dtype();
    let wide = |x| Flex::fast_cast(x, FloatDType::F32);
    Flex::fast_cast(typed::<f32>(wide(lhs), wide(rhs), bias.map(wide)), dtype.into())
}

/// An element of matrices that are multiplied.
trait Factor: Element + Pod + FusedScalar {
    /// Multiplies the pairs of matrices, adds `bias` to each row, and returns the products one after another, by rows.
    fn products(lhs: &Matrices<Self>, rhs: &Matrices<Self>, bias: Option<&[Self]>) -> Vec<Self> {
        gemm::products(lhs, rhs, bias)
    }
}

impl Factor for f32 {}
impl Factor for f16 {}
impl Factor for bf16 {
    #[cfg(target_arch = "x86_64")]
    fn products(lhs: &Matrices<Self>, rhs: &Matrices<Self>, bias: Option<&[Self]>) -> Vec<Self> {
        super::bf16::products(lhs, rhs, bias).unwrap_or_else(|| gemm::products(lhs, rhs, bias))
    }
}

fn typed<T: Factor>(lhs: FlexTensor, rhs: FlexTensor, bias: Option<FlexTensor>) -> FlexTensor {
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
    let out = T::products(&left, &right, bias);
    shape.extend([dim(&lhs, axes), dim(&rhs, axes + 1)]);
    FlexTensor::new(Bytes::from_elems(out), Layout::contiguous(Shape::from(shape)), T::dtype())
}

/// Returns whether the processor multiplies bf16 by dot products: faster than f32, and with the same sums in f32.
pub(crate) fn has_dots() -> bool {
    #[cfg(target_arch = "x86_64")]
    return super::bf16::has_dots();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Multiplies `[m, k]` and `[k, n]`, in f32 or bf16, into f32 without rounding.
pub(crate) fn wide_product(lhs: FlexTensor, rhs: FlexTensor) -> FlexTensor {
    let (lhs, rhs) = (forwards(lhs), forwards(rhs));
    #[cfg(target_arch = "x86_64")]
    if lhs.dtype() == DType::BF16 {
        let shape = Shape::new([lhs.layout().shape()[0], rhs.layout().shape()[1]]);
        let [left, right] = [&lhs, &rhs].map(|x| matrices::<bf16>(x, &[], None));
        if let Some(product) = super::bf16::wide_product(&left, &right) {
            return tensor(product, shape);
        }
    }
    let wide = |x| Flex::fast_cast(x, FloatDType::F32);
    typed::<f32>(wide(lhs), wide(rhs), None)
}

/// Adds the product of `[m, k]` and `[k, n]`, in f32 or bf16, to `total`, `[m, n]` in f32, in place unless others read `total`.
/// Burn has no such operation: the product would be a second matrix, and the sum one more pass over both.
///
/// # Panics
///
/// If the shapes do not fit.
pub(crate) fn add_product(total: FlexTensor, lhs: FlexTensor, rhs: FlexTensor) -> FlexTensor {
    let (mut total, lhs, rhs) = (adjacent(total), forwards(lhs), forwards(rhs));
    let [rows, cols]: [usize; 2] = total.layout().shape().dims();
    assert_eq!([rows, cols], [lhs.layout().shape()[0], rhs.layout().shape()[1]], "the sum's shape differs");
    let start = total.layout().start_offset();
    let sum = &mut total.storage_mut::<f32>()[start..][..rows * cols];
    #[cfg(target_arch = "x86_64")]
    if lhs.dtype() == DType::BF16 {
        let [left, right] = [&lhs, &rhs].map(|x| matrices::<bf16>(x, &[], None));
        if super::bf16::add_product(&left, &right, sum) {
            return total;
        }
    }
    let [lhs, rhs] = [lhs, rhs].map(|x| Flex::fast_cast(x, FloatDType::F32));
    let [left, right] = [&lhs, &rhs].map(|x| matrices::<f32>(x, &[], None));
    gemm::add_product(&left, &right, sum);
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
