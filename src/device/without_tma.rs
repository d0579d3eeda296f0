//! Starts CUDA devices without the tensor memory accelerator.
//!
//! With CubeCL 0.11.3 and cubek-matmul 0.3.1, `Amp::bf16()` fails in the first step on devices of compute capability 9.0
//! and above. A candidate for products of at least four times as many rows as columns asks the accelerator for boxes of
//! 512 rows, while the driver allows 256; the refused launch then marks the inputs of the product as unwritten. See the
//! report in `docs/known_limits.md`. The candidates that use the accelerator look for it among the properties
//! of the device, so it is removed from them before anything reads them.

use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::DispatchDevice;
use burn::tensor::Device;
use cubecl::client::Client;
use cubecl::cuda::CudaRuntime;
use cubecl::device::DeviceId;
use cubecl::ir::OpaqueType;
use cubecl::server::{Server, ServerStorage};
use cubecl_runtime::runtime::Runtime;

/// The numbers of the devices that were started.
static STARTED: Mutex<Vec<u16>> = Mutex::new(Vec::new());

/// Starts a device of CUDA, which must be present; does nothing for other devices. It must come before the device's first
/// use: a device that is in use already keeps the accelerator.
pub(super) fn start(device: &Device) {
    let DispatchDevice::Cube(cubecl::Device::Cuda(cuda)) = device.as_dispatch() else { return };
    let index = cuda.index as u16;
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if !started.contains(&index) {
        // CubeCL's number of CUDA among its runtimes is 0.
        register::<<CudaRuntime as Runtime>::Server>(DeviceId { type_id: 0, index_id: index });
        started.push(index);
    }
}

fn register<S: ServerStorage>(device: DeviceId) {
    let server = S::init(device);
    let shared = Server::utilities(&server);
    // One count is the server's, and one is this.
    if Arc::strong_count(&shared) == 2 {
        let mut properties = (*shared.properties).clone();
        properties.features.tma.clear();
        properties.features.types.opaque.remove(&OpaqueType::TensorMap);
        // SAFETY: the server is not registered yet, so no other thread reaches it, and nothing borrows from `shared`
        // while the field is replaced.
        #[allow(unsafe_code)]
        unsafe {
            (*Arc::as_ptr(&shared).cast_mut()).properties = Arc::new(properties);
        }
    }
    drop(shared);
    // An error means that the device is in use already.
    let _ = Client::try_init(device, server);
}
