//! Tensors in host memory, as buffers on their way between ranks.
//!
//! Ranks exchange bytes of host memory, whatever the device. On CUDA, CubeCL 0.11 reads a tensor into pinned
//! (page-locked) memory of its pool while there is some, which copies at the bus's speed. It also writes up to 100 MB
//! through pinned memory, and larger tensors straight from where they are. The ranks read that memory itself if the copy
//! began [beside](firebrick_kernels::Reading::beside) the computation; the bytes of any other read are copied once more.

use burn::tensor::{Bytes as Storage, Tensor, TensorData};
use bytes::Bytes;

use crate::WorldError;
use crate::call::Call;
use crate::host::try_on_host;

/// Burn's storage as a borrowed buffer, without a copy.
struct Owner(Storage);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Returns the bytes of host data, without a copy.
pub fn lend(data: TensorData) -> Bytes {
    let (storage, ..) = data.into_parts();
    lend_storage(storage)
}

/// Returns the bytes of Burn's storage, without a copy.
pub fn lend_storage(storage: Storage) -> Bytes {
    Bytes::from_owner(Owner(storage))
}

/// Reads a tensor into host memory, for a call.
pub fn read<const D: usize>(tensor: Tensor<D>, call: &Call) -> Result<TensorData, WorldError> {
    try_on_host(tensor)
        .map_err(|error| WorldError::Read { call: call.to_string(), reason: error.to_string() })
}
