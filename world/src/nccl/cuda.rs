//! Tensors in the memory of a CUDA device.
#![allow(unsafe_code)] // CUDA's driver is a C library.

use std::ffi::c_void;

use burn::backend::{CubeDevice, DispatchDevice};
use burn::tensor::{Device, Tensor};
use burn_cubecl::tensor::CubeTensor;
use cubecl::cuda::{CudaDevice, CudaRuntime};
use cubecl_runtime::runtime::Runtime;
use cudarc::driver::result::{DriverError, ctx, device, init, primary_ctx, stream};
use cudarc::driver::sys::{self, CUcontext, CUresult, CUstream};
use firebrick_kernels::Handover;

use super::comm::{Buffer, Memory};

/// A CUDA device, with a stream on which NCCL works beside the device's own.
pub struct Cuda {
    device: Device,
    context: CUcontext,
    stream: CUstream,
}

// SAFETY: CUDA's handles may be used from any thread that has made the context current.
unsafe impl Send for Cuda {}
// SAFETY: as above.
unsafe impl Sync for Cuda {}

fn cuda(device: &Device) -> Result<CudaDevice, String> {
    match device.as_dispatch() {
        DispatchDevice::Cube(CubeDevice::Cuda(cuda)) => Ok(cuda.clone()),
        _ => Err(format!("{device:?} is no CUDA device")),
    }
}

/// Finds CUDA's driver.
fn driver() -> Result<(), String> {
    // SAFETY: this loads the driver, whose initialisation does not affect this program.
    match unsafe { sys::is_culib_present() } {
        true => init().map_err(failed),
        false => Err("CUDA's driver is not installed as libcuda.so".into()),
    }
}

fn failed(error: DriverError) -> String {
    format!("CUDA: {error}")
}

/// Returns the machine's start and the device's address on its bus, if this is a CUDA device.
pub fn place(device: &Device) -> Result<String, String> {
    let index = cuda(device)?.index;
    driver()?;
    let (handle, mut address) = (device::get(index as i32).map_err(failed)?, [0; 32]);
    // SAFETY: the call writes at most as many bytes as `address` has, and ends them with a zero.
    unsafe { sys::cuDeviceGetPCIBusId(address.as_mut_ptr(), address.len() as i32, handle) }
        .result()
        .map_err(failed)?;
    let address: String = address.iter().take_while(|c| **c != 0).map(|c| *c as u8 as char).collect();
    let machine = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    Ok(format!("{} {address}", machine.trim()))
}

impl Cuda {
    pub fn of(device: &Device) -> Result<Self, String> {
        let cuda = cuda(device)?;
        driver()?;
        let handle = device::get(cuda.index as i32).map_err(failed)?;
        // SAFETY: the handle is a device's. CubeCL uses this context too, and never resets it; it stays retained.
        let context = unsafe { primary_ctx::retain(handle) }.map_err(failed)?;
        // SAFETY: the context is live.
        unsafe { ctx::set_current(context) }.map_err(failed)?;
        let stream = stream::create(stream::StreamKind::NonBlocking).map_err(failed)?;
        Ok(Self { device: device.clone(), context, stream })
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // SAFETY: this is the last use of the stream. CUDA destroys it once its work is done.
        let _ = unsafe { stream::destroy(self.stream) };
    }
}

impl Memory for Cuda {
    fn enter(&self) -> Result<(), String> {
        // SAFETY: the context is retained.
        unsafe { ctx::set_current(self.context) }.map_err(failed)
    }

    fn lend(&self, tensors: Handover) -> Result<Vec<Buffer>, String> {
        let there = tensors.computed()?;
        let there = there.ok_or_else(|| format!("expected float tensors of {:?}", self.device))?;
        let buffer = |(tensor, place): (Tensor<1>, CubeTensor)| {
            let resource =
                place.client.get_resource::<<CudaRuntime as Runtime>::Server>(place.handle.clone());
            let resource = resource.map_err(|error| format!("{error:?}"))?;
            let pointer = resource.resource().ptr as *mut c_void;
            let tensor = move || {
                drop((resource, place));
                tensor
            };
            Ok(Buffer { pointer, tensor: Box::new(tensor) })
        };
        there.into_iter().map(buffer).collect()
    }

    fn stream(&self) -> *mut c_void {
        self.stream.cast()
    }

    fn is_idle(&self) -> Result<bool, String> {
        // SAFETY: the stream is live, and its context is current.
        match unsafe { sys::cuStreamQuery(self.stream) } {
            CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            result => result.result().map(|()| true).map_err(failed),
        }
    }
}
