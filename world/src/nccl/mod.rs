//! NCCL: collectives between the devices of ranks that are threads, processes, or both.
//!
//! ```text
//! library.rs its library, found at run time
//! comm.rs    NCCL's communicator: join, collectives, errors, abort; where it finds a tensor's numbers
//! cuda.rs    ... in the memory of a CUDA device
//! host.rs    ... in the host's, for tests with a stand-in for NCCL
//! watch.rs   how long to wait
//! ```
//!
//! The first of the ranks makes an identifier, which the world's own exchange hands to all; with it each rank joins a
//! communicator, when the ranks first exchange between devices. A group of ranks has a communicator of its own.
//!
//! NCCL's calls do not block. A rank polls NCCL and its device until the collective has ended, and gives it up if the world
//! fails or the deadline is near: it then aborts the communicator, which also ends the kernel that waits for the others.

mod comm;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "nccl-stub")]
mod host;
mod library;
mod watch;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use burn::tensor::{DType, Device, Tensor};
use firebrick_kernels::Handover;

use crate::Collective;
pub(crate) use comm::identifier;
use comm::{Buffer, Comm, Memory};
pub(crate) use watch::{Stop, Watch};

/// NCCL between the devices of a group of ranks, as one of them sees it.
pub(crate) struct Nccl {
    memory: Arc<dyn Memory>,
    /// Whether the rank has begun to join.
    joins: AtomicBool,
    comm: Mutex<Membership>,
}

enum Membership {
    Apart,
    Joined(Comm),
    /// Given up, and why.
    Over(String),
}

impl Nccl {
    /// Returns NCCL for a rank on this device, and what distinguishes the device from all others in the world, or the rank
    /// from all others if ranks may share a device.
    ///
    /// # Errors
    ///
    /// Why NCCL does not serve the device.
    pub fn on(device: &Device) -> Result<(String, Self), String> {
        let (place, memory) = memory_of(device)?;
        library::library()?;
        let place = if library::shares_devices() { own_place() } else { place };
        Ok((place, Self::with(memory)))
    }

    /// Returns NCCL for another group of ranks, with the same device.
    pub fn of_group(&self) -> Self {
        Self::with(self.memory.clone())
    }

    fn with(memory: Arc<dyn Memory>) -> Self {
        Self { memory, joins: AtomicBool::new(false), comm: Mutex::new(Membership::Apart) }
    }

    /// Returns whether the ranks have yet to join. Only the first call returns true.
    pub fn begins_to_join(&self) -> bool {
        !self.joins.swap(true, Ordering::Relaxed)
    }

    /// Joins the ranks that share the identifier.
    pub fn join(&self, id: &[u8], rank: usize, size: usize, watch: &mut Watch) -> Result<(), Stop> {
        self.memory.enter().map_err(Stop::Failed)?;
        let joined = Comm::join(id, rank, size, watch);
        let (state, result) = match joined {
            Ok(comm) => (Membership::Joined(comm), Ok(())),
            Err(stop) => (Membership::Over(stop.to_string()), Err(stop)),
        };
        *self.comm.lock().unwrap_or_else(PoisonError::into_inner) = state;
        result
    }

    /// Waits until the device has the tensors, and returns them for NCCL to read and write.
    pub fn lend(&self, tensors: Handover) -> Result<Vec<Buffer>, Stop> {
        self.memory.enter().and_then(|()| self.memory.lend(tensors)).map_err(Stop::Failed)
    }

    /// Exchanges `elements` of a dtype with the other ranks, each of which makes the same call. Returns when the device has
    /// the result.
    pub fn exchange(
        &self,
        kind: Collective,
        [from, to]: [Buffer; 2],
        (elements, dtype): (usize, DType),
        (rank, size): (usize, usize),
        watch: &mut Watch,
    ) -> Result<Tensor<1>, Stop> {
        let count = if kind == Collective::ReduceScatter { elements / size } else { elements };
        let mut state = self.comm.lock().unwrap_or_else(PoisonError::into_inner);
        let comm = match &*state {
            Membership::Joined(comm) => comm,
            Membership::Apart => return Err(Stop::Failed("the ranks have not joined".into())),
            Membership::Over(why) => return Err(Stop::GaveUp(why.clone())),
        };
        let neighbours = [(rank + 1) % size, (rank + size - 1) % size];
        let ended = comm.start(kind, &from, &to, (count, dtype), neighbours, self.memory.stream(), watch);
        let ended = ended.and_then(|()| {
            while !self.memory.is_idle().map_err(Stop::Failed)? {
                comm.check()?;
                watch.pause()?;
            }
            Ok(())
        });
        match ended {
            Ok(()) => Ok(to.into_tensor()),
            Err(stop) => {
                // Aborts. The device may still write for a moment, so both buffers stay: the world is over.
                *state = Membership::Over(stop.to_string());
                std::mem::forget((from, to));
                Err(stop)
            }
        }
    }
}

/// Returns what distinguishes a device from all others in the world, and its memory, if NCCL serves it.
fn memory_of(device: &Device) -> Result<(String, Arc<dyn Memory>), String> {
    #[cfg(feature = "nccl-stub")]
    if host::serves(device) {
        return Ok((own_place(), Arc::new(host::Host::of(device))));
    }
    #[cfg(feature = "cuda")]
    return Ok((cuda::place(device)?, Arc::new(cuda::Cuda::of(device)?)));
    #[cfg(not(feature = "cuda"))]
    Err(format!("{device:?} is no CUDA device"))
}

/// Returns a place of its own for each rank of this machine, as if each had a device.
fn own_place() -> String {
    static RANKS: AtomicUsize = AtomicUsize::new(0);
    format!("process {}, {}", std::process::id(), RANKS.fetch_add(1, Ordering::Relaxed))
}
