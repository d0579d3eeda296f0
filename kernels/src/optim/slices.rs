//! Flex tensors as slices: in place if nothing else holds them, otherwise as copies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::{DispatchDevice, Element, Flex};
use burn::tensor::{Bytes, DType, Shape, Tensor, bf16, f16};
use bytemuck::Pod;
use half::vec::HalfBitsVecExt;
use rayon::prelude::*;

use super::floats::{Floats, FloatsMut};
use super::kernel::TASK;

thread_local! {
    static COPIES: Arc<AtomicU64> = Arc::default();
}

/// Returns the number of parameters and moments that updates on this thread have copied so far.
pub(super) fn copies() -> u64 {
    counter().load(Ordering::Relaxed)
}

/// Returns the count of this thread, for updates that another thread works off.
pub(super) fn counter() -> Arc<AtomicU64> {
    COPIES.with(Arc::clone)
}

/// Returns the address of a Flex tensor's elements.
pub(super) fn address<const D: usize>(tensor: &Tensor<D>) -> Option<usize> {
    if !is_fast(tensor) || tensor.shape().num_elements() == 0 {
        return None;
    }
    let tensor = flex(tensor.clone());
    let offset = tensor.layout().start_offset() * tensor.dtype().size();
    Some(tensor.bytes().as_ptr().addr() + offset)
}

/// Returns whether a tensor is on Flex, outside autodiff, and in a supported dtype.
pub(super) fn is_fast<const D: usize>(tensor: &Tensor<D>) -> bool {
    matches!(tensor.dtype(), DType::F32 | DType::BF16 | DType::F16)
        && !tensor.is_autodiff()
        && matches!(tensor.device().as_dispatch(), DispatchDevice::Flex(_))
}

pub(super) fn flex<const D: usize>(tensor: Tensor<D>) -> FlexTensor {
    tensor.try_into_primitive::<Flex>().expect("a tensor on the device of Flex is Flex's own")
}

/// Returns the tensor if it is contiguous and nothing else holds its memory; otherwise a copy.
pub(super) fn writable(tensor: FlexTensor) -> FlexTensor {
    if tensor.is_unique() && tensor.is_contiguous() {
        return tensor;
    }
    counter().fetch_add(1, Ordering::Relaxed);
    if !tensor.is_contiguous() {
        return tensor.to_contiguous();
    }
    match floats(&tensor) {
        Floats::F32(floats) => copied(floats, &tensor),
        Floats::Bf16(floats) => copied(floats, &tensor),
        Floats::F16(floats) => copied(floats, &tensor),
    }
}

/// Returns a copy, made on all cores.
fn copied<T: Element + Pod + Send + Sync>(floats: &[T], like: &FlexTensor) -> FlexTensor {
    let copy: Vec<T> = floats.par_iter().with_min_len(TASK).copied().collect();
    FlexTensor::new(Bytes::from_elems(copy), Layout::contiguous(like.layout().shape().clone()), like.dtype())
}

/// Returns zeros that touch no memory yet: the pass writes them first, on all cores.
pub(super) fn zeros(shape: Shape, dtype: DType) -> FlexTensor {
    let length = shape.num_elements();
    let bytes = match dtype {
        DType::BF16 => Bytes::from_elems(vec![0; length].reinterpret_into::<bf16>()),
        DType::F16 => Bytes::from_elems(vec![0; length].reinterpret_into::<f16>()),
        _ => Bytes::from_elems(vec![0f32; length]),
    };
    FlexTensor::new(bytes, Layout::contiguous(shape), dtype)
}

/// Returns the elements of a contiguous tensor.
pub(super) fn floats(tensor: &FlexTensor) -> Floats<'_> {
    fn slice<T: Element + Pod>(tensor: &FlexTensor) -> &[T] {
        let start = tensor.layout().start_offset();
        &tensor.storage()[start..][..tensor.layout().num_elements()]
    }
    match tensor.dtype() {
        DType::BF16 => Floats::Bf16(slice(tensor)),
        DType::F16 => Floats::F16(slice(tensor)),
        _ => Floats::F32(slice(tensor)),
    }
}

/// Returns the elements of a [`writable`] tensor.
pub(super) fn floats_mut(tensor: &mut FlexTensor) -> FloatsMut<'_> {
    fn slice<T: Element + Pod>(tensor: &mut FlexTensor) -> &mut [T] {
        let (start, length) = (tensor.layout().start_offset(), tensor.layout().num_elements());
        // `storage_mut` would copy memory that something else holds, rather than write into it.
        &mut tensor.storage_mut()[start..][..length]
    }
    match tensor.dtype() {
        DType::BF16 => FloatsMut::Bf16(slice(tensor)),
        DType::F16 => FloatsMut::F16(slice(tensor)),
        _ => FloatsMut::F32(slice(tensor)),
    }
}
