//! Tensors in host memory as one buffer, joined where the buffer is copied to.
#![allow(unsafe_code)] // The maker of a buffer promises that its memory is initialized.

use std::mem::MaybeUninit;
use std::ops::Range;
use std::sync::OnceLock;

use burn::backend::flex::FlexTensor;
use burn::backend::{BackendTensor, DispatchKindConversion, DispatchTensor, Flex};
use burn::tensor::{Bytes, Tensor};
use cubecl::bytes::{AccessError, AccessPolicy, AllocationController, AllocationProperty};
use rayon::prelude::*;

use crate::flex::adjacent;

/// Bytes that one task copies.
const TASK: usize = 1 << 20;

/// Tensors as a buffer.
struct JoinedTensors {
    parts: Vec<(Range<usize>, FlexTensor)>,
    bytes: usize,
    /// The buffer, if someone has asked for its memory instead of a copy.
    here: OnceLock<Vec<MaybeUninit<u8>>>,
}

/// Joins tensors at their places in a buffer of so many bytes.
///
/// # Panics
///
/// If a tensor is not as long as its place, or not in host memory.
pub fn joined(tensors: Vec<Tensor<1>>, places: Vec<Range<usize>>, bytes: usize) -> Bytes {
    assert_eq!(tensors.len(), places.len(), "the number of tensors");
    let part = |(tensor, place): (Tensor<1>, Range<usize>)| {
        let tensor = of_flex(tensor.inner().into_dispatch());
        assert_eq!(
            tensor.layout().num_elements() * tensor.dtype().size(),
            place.len(),
            "the bytes of a tensor"
        );
        (place, tensor)
    };
    let parts = tensors.into_iter().zip(places).map(part).collect();
    let joined = JoinedTensors { parts, bytes, here: OnceLock::new() };
    // SAFETY: all of its memory, which has so many bytes, is initialized.
    unsafe { Bytes::from_controller(Box::new(joined), bytes) }
}

fn of_flex(tensor: DispatchTensor) -> FlexTensor {
    match <DispatchTensor as DispatchKindConversion<Flex>>::try_into_backend(tensor) {
        Ok(BackendTensor::Float(tensor)) => adjacent(tensor),
        _ => panic!("expected a float tensor in host memory"),
    }
}

impl JoinedTensors {
    fn copy_to(&self, buffer: &mut [u8]) {
        for (place, tensor) in &self.parts {
            let start = tensor.layout().start_offset() * tensor.dtype().size();
            let from = tensor.bytes()[start..][..place.len()].par_chunks(TASK);
            let to = buffer[place.clone()].par_chunks_mut(TASK);
            to.zip(from).for_each(|(to, from)| to.copy_from_slice(from));
        }
    }

    fn here(&self) -> &Vec<MaybeUninit<u8>> {
        self.here.get_or_init(|| {
            let mut buffer = vec![0; self.bytes];
            self.copy_to(&mut buffer);
            buffer.into_iter().map(MaybeUninit::new).collect()
        })
    }
}

impl AllocationController for JoinedTensors {
    fn alloc_align(&self) -> usize {
        1
    }

    fn property(&self) -> AllocationProperty {
        AllocationProperty::Other
    }

    unsafe fn memory_mut(&mut self, _: AccessPolicy) -> Result<&mut [MaybeUninit<u8>], AccessError> {
        self.here();
        Ok(self.here.get_mut().expect("it is here"))
    }

    fn memory(&self, _: AccessPolicy) -> Result<&[MaybeUninit<u8>], AccessError> {
        Ok(self.here())
    }

    fn capacity(&self) -> usize {
        self.bytes
    }

    unsafe fn copy_into(&self, buffer: &mut [u8]) {
        self.copy_to(buffer);
    }
}
