//! Tensors in the host's memory, as buffers on their way between ranks.
//!
//! Ranks exchange bytes of the host's memory, whatever the device. On CUDA, CubeCL 0.11 reads a tensor into
//! pinned (page-locked) memory of its pool while there is some, so that the copy runs at the bus's speed,
//! and writes up to 100 MB through pinned memory too, and more than that straight from where it is. In
//! between the bytes are copied once more, into memory that stays what it was: see [`read`].

use burn::tensor::{Bytes as Storage, DType, Device, Tensor, TensorData};
use bytemuck::Pod;
use bytes::Bytes;

use super::WorldError;
use super::call::Call;

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

/// Host data of one dtype and shape, copied from consecutive buffers.
pub fn joined<'a>(dtype: DType, shape: Vec<usize>, buffers: impl Iterator<Item = &'a [u8]>) -> TensorData {
    let elements = shape.iter().product();
    // Burn keeps memory as it was allocated only where it was for elements of this size: it copies that of
    // `Vec<u8>` once more.
    let storage = match dtype.size() {
        2 => stored::<u16>(elements, buffers),
        4 => stored::<u32>(elements, buffers),
        8 => stored::<u64>(elements, buffers),
        size => stored::<u8>(elements * size, buffers),
    };
    TensorData::from_bytes(storage, shape, dtype)
}

fn stored<'a, E: Pod + Send + Sync>(elements: usize, buffers: impl Iterator<Item = &'a [u8]>) -> Storage {
    let mut all = Vec::<E>::with_capacity(elements);
    for buffer in buffers {
        match bytemuck::try_cast_slice(buffer) {
            Ok(elements) => all.extend_from_slice(elements),
            // It lies at an odd address.
            Err(_) => all.extend(bytemuck::pod_collect_to_vec::<u8, E>(buffer)),
        }
    }
    Storage::from_elems(all)
}

/// A tensor's numbers in the host's memory.
///
/// They are copied, except from the CPU backend's own memory. Where a GPU shares the processor's memory,
/// what CubeCL 0.11 reads from it may still be the device's own: the next kernel that works in place
/// would change it, while other ranks read it.
pub fn read<const D: usize>(tensor: Tensor<D>, call: &Call) -> Result<TensorData, WorldError> {
    let own = is_host(&tensor.device());
    let failed = |error: &dyn std::fmt::Display| WorldError::Read {
        call: call.to_string(),
        reason: error.to_string(),
    };
    let data = tensor.try_into_data().map_err(|error| failed(&error))?;
    if own {
        return Ok(data);
    }
    Ok(joined(data.dtype(), data.shape().to_vec(), std::iter::once(data.as_bytes())))
}

#[cfg(feature = "flex")]
fn is_host(device: &Device) -> bool {
    *device == Device::flex()
}

#[cfg(not(feature = "flex"))]
fn is_host(_: &Device) -> bool {
    false
}
