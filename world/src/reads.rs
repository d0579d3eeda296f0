//! Reads of several results of a device at once, with one wait.

use burn::backend::DispatchTensor;
use burn::tensor::{Tensor, TensorData, TensorReadError, Transaction};

use crate::host::{apart, count_read, is_host, on_host};

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
