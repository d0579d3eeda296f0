//! Calls of a CUDA library in the order of CubeCL's stream: all that is known here of CubeCL's internals.
//!
//! CubeCL has a thread for each device, which queues all work. A call is one more task of that thread, between the
//! launches of kernels that were submitted before and after it. CubeCL says which stream they go to, lets it wait for
//! others, and says where tensors are: it may move them, so no place is kept.
#![allow(unsafe_code)] // CUDA's driver is a C library.

use std::cell::Cell;
use std::ffi::c_void;

use cubecl::cuda::CudaRuntime;
use cubecl_common::device_handle::DeviceHandle;
use cubecl_runtime::client::Client;
use cubecl_runtime::dry_run::launch_mode;
use cubecl_runtime::id::KernelId;
use cubecl_runtime::runtime::Runtime;
use cubecl_runtime::server::{BufferBinding, Handle, ServerError};
use cubecl_server::command::DeviceStream;
use cubecl_server::stream::{ExecuteScope, WriteScoped};
use cudarc::driver::result::{ctx, device, primary_ctx};
use cudarc::driver::sys::CUcontext;

type Server = <CudaRuntime as Runtime>::Server;

/// A place in a device's memory, or a stream of it.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
pub struct DevicePointer(pub *mut c_void);

// SAFETY: a place is a number until a call reads it, on the thread of its device.
unsafe impl Send for DevicePointer {}

/// Calls `call` on the thread of the client's device, when all that was submitted before is queued, with the stream and
/// the places of what it reads and writes. What it writes stays alive until the stream has done that. If what it reads
/// could not be computed, or it fails, reading what it writes tells that error.
///
/// # Panics
///
/// If it writes nothing.
pub fn enqueue(
    client: &Client,
    reads: Vec<Handle>,
    writes: Vec<Handle>,
    call: impl FnOnce(DevicePointer, &[DevicePointer], &[DevicePointer]) -> Result<(), String> + Send + 'static,
) {
    if launch_mode().is_skipped() {
        return;
    }
    // The stream of the caller's launches, if the caller has just created this tensor. If the tensor is older and belongs to
    // another stream, work that reads it waits for that stream.
    let stream = writes[0].stream;
    let index = client.service_id().device.index_id;
    let bindings =
        |handles: Vec<Handle>| handles.into_iter().map(Handle::binding).collect::<Vec<BufferBinding>>();
    let (reads, writes) = (bindings(reads), bindings(writes));
    let queued = move |server: &mut Server| {
        let kernel = KernelId::new::<DevicePointer>();
        let scope = ExecuteScope::launching(server, kernel, stream, reads.iter(), writes.clone());
        scope.execute(|server| {
            enter(index).map_err(failed)?;
            let mut streams = server.write_streams().resolve(stream, reads.iter().chain(&writes))?;
            let mut place = |binding: &BufferBinding| {
                let BufferBinding { memory, stream, offset_start, offset_end, .. } = binding.clone();
                streams.current().capturing().touch(stream, memory.descriptor().location());
                let resource =
                    streams.get(&stream).device_memory().get_resource(memory, offset_start, offset_end)?;
                Ok::<_, ServerError>(DevicePointer(resource.ptr as *mut c_void))
            };
            let reads = reads.iter().map(&mut place).collect::<Result<Vec<_>, _>>()?;
            let writes = writes.iter().map(&mut place).collect::<Result<Vec<_>, _>>()?;
            call(DevicePointer(streams.current().sys.cast()), &reads, &writes).map_err(failed)
        });
    };
    handle(client).submit(queued);
}

/// Calls `call` on the thread of the client's device, with its context, and waits for it. The device does not.
///
/// # Errors
///
/// Those of `call`, or the thread has ended.
pub fn on_thread_of<T: Send>(
    client: &Client,
    call: impl FnOnce() -> Result<T, String> + Send,
) -> Result<T, String> {
    let index = client.service_id().device.index_id;
    let called = handle(client).submit_blocking(move |_| enter(index).and_then(|()| call()));
    called.unwrap_or_else(|error| Err(error.message().unwrap_or("the device's thread has ended").into()))
}

/// Returns the queue that a client's own tasks go through.
fn handle(client: &Client) -> DeviceHandle<Server> {
    DeviceHandle::new(client.service_id().device)
}

thread_local! {
    /// The context of the device whose thread this is.
    static CONTEXT: Cell<Option<CUcontext>> = const { Cell::new(None) };
}

/// Makes the context current that CubeCL uses on a device, on the device's thread.
fn enter(index: u16) -> Result<(), String> {
    let failed = |error| format!("CUDA: {error}");
    let context = match CONTEXT.get() {
        Some(context) => context,
        // SAFETY: the handle is a device's. CubeCL uses this context too, and never resets it; it stays retained.
        None => unsafe { primary_ctx::retain(device::get(index.into()).map_err(failed)?).map_err(failed)? },
    };
    CONTEXT.set(Some(context));
    // SAFETY: the context is live.
    unsafe { ctx::set_current(context) }.map_err(failed)
}

fn failed(reason: String) -> ServerError {
    ServerError::Generic { reason, backtrace: Default::default() }
}
