//! What the kernels for Flex, Burn's CPU backend, have in common.
//!
//! ```text
//! buffer.rs  memory of a new tensor, written in parts on all cores
//! lanes.rs   f32, bf16 and f16 as f32, without branches, and their sums in one order on every processor
//! ```

mod buffer;
mod lanes;

use burn::backend::Element;
use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::{Bytes, DType, Shape, bf16, f16};

pub(crate) use buffer::{Buffer, Part};
pub(crate) use lanes::{Lane, dot, sum, sum_of};

/// Elements that one task computes: tens of microseconds of work, so that small tensors stay on one core.
pub(crate) const TASK: usize = 1 << 13;

/// Returns the tensor, copied if its elements are not adjacent in the order of its axes.
pub(crate) fn adjacent(x: FlexTensor) -> FlexTensor {
    if x.is_contiguous() { x } else { x.to_contiguous() }
}

/// Returns the elements of an [`adjacent`] tensor.
pub(crate) fn elements<T: Element + bytemuck::Pod>(x: &FlexTensor) -> &[T] {
    &x.storage::<T>()[x.layout().start_offset()..][..x.layout().num_elements()]
}

/// Returns the elements of a float tensor of at most 32 bits, widened.
pub(crate) fn widened(x: FlexTensor) -> Vec<f32> {
    fn of<T: Lane>(x: &FlexTensor) -> Vec<f32> {
        elements::<T>(x).iter().map(|x| x.wide()).collect()
    }
    let x = adjacent(x);
    match x.dtype() {
        DType::F32 => of::<f32>(&x),
        DType::BF16 => of::<bf16>(&x),
        DType::F16 => of::<f16>(&x),
        dtype => panic!("expected f32, bf16 or f16, found {dtype:?}"),
    }
}

/// Creates a tensor from its elements.
pub(crate) fn tensor<T: Element + bytemuck::Pod>(x: Vec<T>, shape: Shape) -> FlexTensor {
    FlexTensor::new(Bytes::from_elems(x), Layout::contiguous(shape), T::dtype())
}

#[cfg(test)]
mod tests;
