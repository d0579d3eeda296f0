//! Host memory in the place of a device's, for tests with a stand-in for NCCL that exchanges it.

use std::ffi::c_void;
use std::ptr::null_mut;

use burn::tensor::{Bytes, DType, Device, Tensor, TensorData};
use firebrick_kernels::Handover;

use super::comm::{Buffer, Memory};
use crate::host::is_host;

/// The variable that says that the library is the stand-in: NCCL itself cannot read host memory.
const STANDS_IN: &str = "FIREBRICK_NCCL_STUB";

/// Returns whether NCCL's stand-in serves the device.
pub fn serves(device: &Device) -> bool {
    std::env::var_os(STANDS_IN).is_some() && is_host(device)
}

pub struct Host(Device);

impl Host {
    pub fn of(device: &Device) -> Self {
        Self(device.clone())
    }

    fn buffer(&self, mut bytes: Bytes, elements: usize, dtype: DType) -> Buffer {
        let (pointer, device) = (bytes.as_mut_ptr().cast::<c_void>(), self.0.clone());
        let tensor = move || {
            let data = TensorData::from_bytes(bytes, [elements], dtype);
            Tensor::from_data(data, (&device, dtype))
        };
        Buffer { pointer, tensor: Box::new(tensor) }
    }
}

impl Memory for Host {
    fn enter(&self) -> Result<(), String> {
        Ok(())
    }

    fn lend(&self, tensors: Handover) -> Result<Vec<Buffer>, String> {
        let buffer = |tensor: Tensor<1>| {
            let (elements, dtype) = (tensor.dims()[0], tensor.dtype());
            let (bytes, ..) = tensor.into_data().into_parts();
            self.buffer(bytes, elements, dtype)
        };
        Ok(tensors.into_tensors().into_iter().map(buffer).collect())
    }

    fn stream(&self) -> *mut c_void {
        null_mut()
    }

    fn is_idle(&self) -> Result<bool, String> {
        Ok(true)
    }
}
