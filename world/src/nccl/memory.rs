//! Where NCCL finds a tensor's numbers.

use std::ffi::c_void;

use burn::tensor::Tensor;
use firebrick_kernels::Handover;

/// The memory of a rank's device.
pub trait Memory: Send + Sync {
    /// Makes the device current in this thread.
    fn enter(&self) -> Result<(), String>;
    /// Returns the buffers of flat tensors, for NCCL to read and write, once the device has done what was queued before
    /// they were handed over: also with the memory that they have taken.
    fn lend(&self, tensors: Handover) -> Result<Vec<Buffer>, String>;
    /// Returns the stream of CUDA on which NCCL works.
    fn stream(&self) -> *mut c_void;
    /// Returns whether the stream has done its work.
    fn is_idle(&self) -> Result<bool, String>;
}

/// Numbers in a device's memory.
pub struct Buffer {
    /// Its address there.
    pub pointer: *mut c_void,
    /// Holds the memory, and returns it as a tensor.
    pub tensor: Box<dyn FnOnce() -> Tensor<1> + Send>,
}

impl Buffer {
    /// Returns the numbers as a tensor.
    pub fn into_tensor(self) -> Tensor<1> {
        (self.tensor)()
    }
}
