//! NCCL's communicator, and where it finds a tensor's numbers.
#![allow(unsafe_code)] // NCCL is a C library.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use burn::tensor::{DType, Tensor};
use cudarc::nccl::sys::{self, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId};
use firebrick_kernels::Handover;

use super::library::{Library, OLDEST, library};
use super::watch::{Stop, Watch};
use crate::Collective;

/// Marks settings as initialised: `NCCL_API_MAGIC`.
const MAGIC: u32 = 0xcafe_beef;

/// A setting that is left to NCCL: `NCCL_CONFIG_UNDEF_INT`.
const UNDEFINED: c_int = c_int::MIN;

/// One rank's end of a communicator. Dropping it aborts what is under way.
pub struct Comm {
    nccl: &'static Library,
    handle: sys::ncclComm_t,
}

// SAFETY: NCCL allows calls of a communicator from any thread, one at a time; it is behind a mutex.
unsafe impl Send for Comm {}

/// Makes an identifier with which ranks find each other.
pub fn identifier() -> Result<Vec<u8>, String> {
    let nccl = library()?;
    let mut id = ncclUniqueId { internal: [0; 128] };
    // SAFETY: `id` outlives the call, which writes it.
    done(nccl, unsafe { (nccl.ncclGetUniqueId)(&mut id) }, null_mut())?;
    Ok(id.internal.map(|byte| byte as u8).to_vec())
}

impl Comm {
    /// Joins the ranks that call this with the same identifier.
    pub fn join(id: &[u8], rank: usize, size: usize, watch: &mut Watch) -> Result<Self, Stop> {
        let nccl = library().map_err(Stop::Failed)?;
        let Ok(id) = <[u8; 128]>::try_from(id) else {
            return Err(Stop::Failed(format!("expected an identifier of 128 bytes, found {}", id.len())));
        };
        let id = ncclUniqueId { internal: id.map(|byte| byte as c_char) };
        // SAFETY: all fields are numbers and pointers, for which zero is a value.
        let mut settings: sys::ncclConfig_t = unsafe { std::mem::zeroed() };
        settings.size = size_of_val(&settings);
        (settings.magic, settings.version) = (MAGIC, OLDEST as u32);
        // What later versions added is left out by the number of the version, and undefined besides.
        (settings.cgaClusterSize, settings.minCTAs, settings.maxCTAs) = (UNDEFINED, UNDEFINED, UNDEFINED);
        settings.splitShare = UNDEFINED;
        settings.blocking = 0;
        let mut handle = null_mut();
        // SAFETY: `handle` and `settings` outlive the call; NCCL copies the settings.
        let begun = unsafe {
            (nccl.ncclCommInitRankConfig)(&mut handle, size as c_int, id, rank as c_int, &mut settings)
        };
        if handle.is_null() {
            let why = done(nccl, begun, handle).err();
            return Err(Stop::Failed(why.unwrap_or("NCCL made no communicator".into())));
        }
        let comm = Self { nccl, handle };
        comm.settle(begun, watch)?;
        Ok(comm)
    }

    /// Starts a collective on the device's stream. `count` is the number of elements of a rank's part, as NCCL defines it, and a
    /// shift goes to the `next` rank.
    #[expect(clippy::too_many_arguments)] // NCCL's own, and the watch.
    pub fn start(
        &self,
        kind: Collective,
        from: &Buffer,
        to: &Buffer,
        (count, dtype): (usize, DType),
        [next, before]: [usize; 2],
        stream: *mut c_void,
        watch: &mut Watch,
    ) -> Result<(), Stop> {
        let dtype = match dtype {
            DType::F32 => ncclDataType_t::ncclFloat32,
            DType::F16 => ncclDataType_t::ncclFloat16,
            DType::BF16 => ncclDataType_t::ncclBfloat16,
            other => return Err(Stop::Failed(format!("NCCL exchanges f32, f16 and bf16, found {other:?}"))),
        };
        let (sum, comm, stream) = (ncclRedOp_t::ncclSum, self.handle, stream.cast());
        let (from, to) = (from.pointer.cast_const(), to.pointer);
        // SAFETY: both buffers have the elements that the collective reads or writes, on the device of the communicator,
        // and stay until its stream is idle. The communicator is live.
        let begun = unsafe {
            match kind {
                Collective::AllReduce => (self.nccl.ncclAllReduce)(from, to, count, dtype, sum, comm, stream),
                Collective::ReduceScatter => {
                    (self.nccl.ncclReduceScatter)(from, to, count, dtype, sum, comm, stream)
                }
                Collective::AllGather => (self.nccl.ncclAllGather)(from, to, count, dtype, comm, stream),
                Collective::Shift => {
                    done(self.nccl, (self.nccl.ncclGroupStart)(), comm).map_err(Stop::Failed)?;
                    let sent = (self.nccl.ncclSend)(from, count, dtype, next as c_int, comm, stream);
                    let received = (self.nccl.ncclRecv)(to, count, dtype, before as c_int, comm, stream);
                    // The group ends in any case: it is one of this thread.
                    let ended = (self.nccl.ncclGroupEnd)();
                    let failed = |result: &ncclResult_t| {
                        !matches!(result, ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress)
                    };
                    [sent, received].into_iter().find(failed).unwrap_or(ended)
                }
                other => return Err(Stop::Failed(format!("{other} is no collective between devices"))),
            }
        };
        self.settle(begun, watch)
    }

    /// Returns the error that has come up since, if there is one.
    pub fn check(&self) -> Result<(), Stop> {
        match self.state()? {
            ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress => Ok(()),
            error => Err(self.stop(error)),
        }
    }

    /// Waits until NCCL has taken up what was begun.
    fn settle(&self, begun: ncclResult_t, watch: &mut Watch) -> Result<(), Stop> {
        let mut state = begun;
        loop {
            match state {
                ncclResult_t::ncclSuccess => return Ok(()),
                ncclResult_t::ncclInProgress => watch.pause()?,
                error => return Err(self.stop(error)),
            }
            state = self.state()?;
        }
    }

    fn state(&self) -> Result<ncclResult_t, Stop> {
        let mut state = ncclResult_t::ncclSuccess;
        // SAFETY: the communicator is live, and `state` outlives the call.
        let asked = unsafe { (self.nccl.ncclCommGetAsyncError)(self.handle, &mut state) };
        done(self.nccl, asked, self.handle).map_err(Stop::Failed)?;
        Ok(state)
    }

    /// Tells a rank that notices that another one is gone from a rank whose own part has failed: the world finds out who
    /// is missing.
    fn stop(&self, error: ncclResult_t) -> Stop {
        let text = described(self.nccl, error, self.handle);
        if error == ncclResult_t::ncclRemoteError { Stop::GaveUp(text) } else { Stop::Failed(text) }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        // SAFETY: the communicator is live, and this is its last use. An error changes nothing: it is gone either way.
        let _ = unsafe { (self.nccl.ncclCommAbort)(self.handle) };
    }
}

fn done(nccl: &Library, result: ncclResult_t, comm: sys::ncclComm_t) -> Result<(), String> {
    match result {
        ncclResult_t::ncclSuccess => Ok(()),
        error => Err(described(nccl, error, comm)),
    }
}

fn described(nccl: &Library, error: ncclResult_t, comm: sys::ncclComm_t) -> String {
    // SAFETY: both calls take any error and a communicator or none, and return a text that lives as long as NCCL, or null.
    let texts = unsafe { [(nccl.ncclGetErrorString)(error), (nccl.ncclGetLastError)(comm)] };
    let text = |at: *const c_char| {
        // SAFETY: it is not null, and ends in a zero, as NCCL's texts do.
        (!at.is_null()).then(|| unsafe { CStr::from_ptr(at) }.to_string_lossy().trim().to_string())
    };
    let texts: Vec<_> = texts.into_iter().filter_map(text).filter(|text| !text.is_empty()).collect();
    format!("NCCL: {}", texts.join(": "))
}

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
