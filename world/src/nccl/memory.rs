//! Where NCCL finds a tensor's numbers.

use std::ffi::c_void;

use burn::tensor::{DType, Tensor};

/// The memory of a rank's device.
pub trait Memory: Send + Sync {
    /// Makes the device current in this thread.
    fn enter(&self) -> Result<(), String>;
    /// Returns the buffer of a flat tensor, for NCCL to read.
    fn lend(&self, tensor: Tensor<1>) -> Result<Buffer, String>;
    /// Returns a buffer of its own for NCCL to write.
    fn room(&self, elements: usize, dtype: DType) -> Result<Buffer, String>;
    /// Waits until the device has done what is queued so far.
    fn wait_for_queue(&self) -> Result<(), String>;
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
