//! Tensors in the host's memory, as buffers on their way between ranks.
//!
//! Ranks exchange bytes of the host's memory, whatever the device. On CUDA, CubeCL 0.11 reads a tensor into
//! pinned (page-locked) memory of its pool while there is some, so that the copy runs at the bus's speed,
//! and writes up to 100 MB through pinned memory too, and more than that straight from where it is. In
//! between the bytes are copied once more, into memory that stays what it was: other ranks read it.

use burn::tensor::{Bytes as Storage, Tensor, TensorData};
use bytes::Bytes;

use super::WorldError;
use super::call::Call;
use crate::host::try_on_host;

/// Burn's storage, lent as a buffer: no byte is copied.
struct Lent(Storage);

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The bytes of host data, without a copy.
pub fn lend(data: TensorData) -> Bytes {
    let (storage, ..) = data.into_parts();
    Bytes::from_owner(Lent(storage))
}

/// A tensor's numbers in the host's memory, for a call.
pub fn read<const D: usize>(tensor: Tensor<D>, call: &Call) -> Result<TensorData, WorldError> {
    try_on_host(tensor)
        .map_err(|error| WorldError::Read { call: call.to_string(), reason: error.to_string() })
}
