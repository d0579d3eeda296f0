//! Host memory, through which tensors pass between devices and ranks: as a device, tensors' values in it, and buffers on
//! their way between ranks.
//!
//! Ranks exchange bytes of host memory, whatever the device. On CUDA, CubeCL 0.11 reads a tensor into pinned
//! (page-locked) memory of its pool while there is some, which copies at the bus's speed. It also writes up to 100 MB
//! through pinned memory, and larger tensors straight from where they are. The ranks read that memory itself if the copy
//! began [beside](firebrick_kernels::Reading::beside) the computation; the bytes of any other read are copied once more.

use std::cell::Cell;

use burn::backend::DispatchTensor;
use burn::tensor::{Bytes, DType, Device, ExecutionError, Tensor, TensorData, TensorReadError, Transaction};
use bytemuck::Pod;
use firebrick_kernels::memory::InTransit;

use crate::WorldError;
use crate::call::Call;

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

/// Returns the bytes of host data, without a copy. They are in transit from now on.
pub fn lend(data: TensorData) -> bytes::Bytes {
    let (storage, ..) = data.into_parts();
    let align = storage.align();
    bytes::Bytes::from_owner(InTransit::new(storage, align))
}

/// Pinned memory as a borrowed buffer.
struct Pinned(Bytes);

impl AsRef<[u8]> for Pinned {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Returns the bytes of pinned memory, without a copy.
pub fn lend_pinned(storage: Bytes) -> bytes::Bytes {
    bytes::Bytes::from_owner(Pinned(storage))
}

/// Reads a tensor into host memory, for a call.
pub fn read<const D: usize>(tensor: Tensor<D>, call: &Call) -> Result<TensorData, WorldError> {
    try_on_host(tensor)
        .map_err(|error| WorldError::Read { call: call.to_string(), reason: error.to_string() })
}

/// Reads one number of each tensor, each `[1]`: with one wait if they are on one device and in one dtype.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_world::{numbers, reads};
///
/// let number = |x: f32| Tensor::<1>::from_data([x], &Device::flex());
/// let before = reads();
/// assert_eq!(numbers(vec![number(0.5), number(-2.0)])?, [0.5, -2.0]);
/// assert_eq!(reads() - before, 1);
/// # Ok::<(), burn::tensor::TensorReadError>(())
/// ```
///
/// # Errors
///
/// The device has failed.
pub fn numbers(tensors: Vec<Tensor<1>>) -> Result<Vec<f64>, TensorReadError> {
    let Some(first) = tensors.first() else { return Ok(Vec::new()) };
    let (device, dtype) = (first.device(), first.dtype());
    let alike = tensors.iter().all(|tensor| tensor.device() == device && tensor.dtype() == dtype);
    if tensors.len() > 1 && !alike {
        let each = tensors.into_iter().map(|tensor| numbers(vec![tensor]));
        return Ok(each.collect::<Result<Vec<_>, _>>()?.concat());
    }
    count_read();
    let all = if tensors.len() == 1 { tensors } else { vec![Tensor::cat(tensors, 0)] };
    let mut read = all.into_iter().map(|tensor| tensor.try_into_data());
    let data = read.next().expect("there is one tensor")?;
    Ok(data.iter::<f64>().collect())
}

/// The bytes that a device copies before the host waits for them.
const AT_ONCE: usize = 64 << 20;

/// Reads tensors outside autodiff into host memory that no device owns, in order. If all are on one device, it waits for
/// 64 MiB of them at a time.
///
/// # Panics
///
/// If the device has failed.
pub fn all_on_host(tensors: Vec<DispatchTensor>) -> Vec<TensorData> {
    // A read does not depend on the rank in the type: the data has the tensor's own shape.
    let tensors: Vec<_> = tensors.into_iter().map(Tensor::<1>::from_dispatch).collect();
    let Some(device) = tensors.first().map(Tensor::device) else { return Vec::new() };
    if is_host(&device) {
        // The CPU lends its own memory.
        count_read();
        return tensors.into_iter().map(|tensor| tensor.inner().into_data()).collect();
    }
    if tensors.iter().any(|tensor| tensor.device() != device) {
        return tensors.into_iter().map(on_host).collect();
    }
    let (mut all, mut some, mut bytes) = (Vec::new(), Vec::new(), 0);
    let mut read = |some: &mut Vec<Tensor<1>>| {
        count_read();
        let read = some.drain(..).fold(Transaction::default(), Transaction::register).execute();
        all.extend(read.into_iter().map(|read| apart(read, &device)));
    };
    for tensor in tensors {
        bytes += tensor.shape().num_elements() * tensor.dtype().size();
        some.push(tensor);
        if bytes > AT_ONCE {
            read(&mut some);
            bytes = 0;
        }
    }
    if !some.is_empty() {
        read(&mut some);
    }
    all
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
