//! Host memory, through which tensors pass between devices and ranks: as a device, and tensors' values in it.

use std::cell::Cell;

use burn::tensor::{Bytes, DType, Device, ExecutionError, Tensor, TensorData};
use bytemuck::Pod;

thread_local! {
    static READS: Cell<u64> = const { Cell::new(0) };
}

/// Returns how often this thread has waited for a device's results so far, by the functions of this crate that read
/// tensors. On the CPU, where a read waits for nothing, it counts the same reads.
pub fn reads() -> u64 {
    READS.get()
}

/// Counts a read of [`reads`] that another crate has waited for.
pub fn count_read() {
    READS.set(READS.get() + 1);
}

/// Returns the host as a device that stores tensors: that of Burn's CPU backend, Flex.
pub fn host_device() -> Device {
    Device::flex()
}

/// Returns whether a device is the host.
pub fn is_host(device: &Device) -> bool {
    device.clone().inner() == host_device()
}

/// Returns the values of a tensor, without its gradient, in host memory that no other device owns.
///
/// Copies them, except from the CPU backend's own memory. If a GPU shares memory with the processor, a read through
/// CubeCL 0.11 may return the device's own memory, which the next in-place kernel would change; the copy prevents this.
pub fn on_host<const D: usize>(tensor: Tensor<D>) -> TensorData {
    count_read();
    let tensor = tensor.inner();
    let device = tensor.device();
    apart(tensor.into_data(), &device)
}

/// Like [`on_host`], but returns a device failure as an error.
pub(crate) fn try_on_host<const D: usize>(tensor: Tensor<D>) -> Result<TensorData, ExecutionError> {
    count_read();
    let tensor = tensor.inner();
    let device = tensor.device();
    Ok(apart(tensor.try_into_data()?, &device))
}

/// Copies a read result into memory that the device does not own.
pub(crate) fn apart(read: TensorData, from: &Device) -> TensorData {
    match is_host(from) {
        true => read,
        false => joined(read.dtype(), read.shape().to_vec(), std::iter::once(read.as_bytes())),
    }
}

/// Joins consecutive buffers into host data of one dtype and shape, by copying.
pub fn joined<'a>(dtype: DType, shape: Vec<usize>, buffers: impl Iterator<Item = &'a [u8]>) -> TensorData {
    let elements = shape.iter().product();
    // Burn keeps an allocation only if it was made for elements of this size; it would copy a `Vec<u8>` again.
    let storage = match dtype.size() {
        2 => stored::<u16>(elements, buffers),
        4 => stored::<u32>(elements, buffers),
        8 => stored::<u64>(elements, buffers),
        size => stored::<u8>(elements * size, buffers),
    };
    TensorData::from_bytes(storage, shape, dtype)
}

fn stored<'a, E: Pod + Send + Sync>(elements: usize, buffers: impl Iterator<Item = &'a [u8]>) -> Bytes {
    let mut all = Vec::<E>::with_capacity(elements);
    for buffer in buffers {
        match bytemuck::try_cast_slice(buffer) {
            Ok(elements) => all.extend_from_slice(elements),
            // The buffer's address is not aligned.
            Err(_) => all.extend(bytemuck::pod_collect_to_vec::<u8, E>(buffer)),
        }
    }
    Bytes::from_elems(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn reading_keeps_values_and_drops_gradients() {
        let device = testing::device().autodiff();
        let numbers = [[1.5f32, -2.0], [0.25, 3.0]];
        let tracked = Tensor::<2>::from_data(numbers, &device).require_grad();
        assert_eq!(on_host(tracked.clone()), TensorData::from(numbers));
        assert_eq!(try_on_host(tracked).unwrap(), TensorData::from(numbers));
    }

    #[test]
    fn buffers_at_any_address_are_joined() {
        let bytes: Vec<u8> = (0..17).collect();
        for dtype in [DType::U8, DType::BF16, DType::F32, DType::F64] {
            let elements = 16 / dtype.size();
            let found = joined(dtype, vec![elements], [&bytes[1..9], &bytes[9..17]].into_iter());
            assert_eq!((found.as_bytes(), found.dtype()), (&bytes[1..], dtype));
        }
    }

    #[test]
    fn the_host_is_one_device_with_or_without_autodiff() {
        let host = host_device();
        assert!(is_host(&host) && is_host(&host.autodiff()));
    }
}
