//! Who the ranks of a run are, and what they exchange.
//!
//! A [`World`] is a recipe; [`World::join`] makes it one [`Communicator`] for each rank of this process. A
//! strategy calls the same collectives whoever the ranks are: one process alone, threads of one process,
//! or processes on many machines.
//!
//! ```text
//! communicator.rs  Communicator: a rank's end, its numbers, barrier and failure
//! tensors.rs       collectives on tensors
//! on_devices.rs    sums that devices make among themselves: NCCL
//! collectives.rs   collectives on many parts at once, in host memory
//! from_root.rs     what one rank has, to every rank, or a chunk of it to each
//! gathering.rs     gathers that are started early and waited for later
//! exchange.rs      what all of them are made of: each rank hands each rank a message
//! call.rs          what ranks must agree on
//! sum.rs           sums in rank order, rounded once
//! host.rs          tensors in host memory, lent without a copy
//! mpi/             ranks in other processes
//! launchers.rs     what a launcher tells each of them of itself
//! traffic.rs       what was sent and received, counted where it happens
//! error.rs         what can go wrong
//! ```
//!
//! # Faults
//!
//! Nobody hangs. A rank that [fails](Communicator::fail), panics, ends early, makes another call than the
//! others or does not come within the [deadline](World::deadline) ends every rank's current or next call
//! with an error that names it.

mod call;
mod collectives;
mod communicator;
mod error;
mod exchange;
mod from_root;
mod gathering;
mod host;
mod launchers;
#[cfg(feature = "mpi")]
mod mpi;
mod on_devices;
mod sum;
mod tensors;
#[cfg(test)]
pub(crate) mod testing;
mod traffic;

#[cfg(test)]
mod collectives_tests;
#[cfg(test)]
mod faults_tests;

use std::sync::Arc;
use std::time::Duration;

use burn::tensor::Device;

pub use call::{Kind, PartShape};
pub use communicator::Communicator;
pub use error::WorldError;
pub use gathering::Gathering;
pub use launchers::{LAUNCHERS, Launcher};
pub use traffic::{Moved, Traffic};

use exchange::Exchange;
pub(crate) use on_devices::OnDevices;

/// Who the ranks of a run are: an inert recipe.
///
/// ```
/// use burn::tensor::Device;
/// use firebrick_strategies::World;
///
/// let world = World::threads(4).on(vec![Device::flex()]);
/// assert_eq!(world.device(3), Some(&Device::flex()));
/// assert_eq!(world.join()?.len(), 4);
/// # Ok::<(), firebrick_strategies::WorldError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct World {
    /// Ranks in each process.
    threads: usize,
    /// Whether there are other processes, joined by MPI.
    #[cfg(feature = "mpi")]
    processes: bool,
    devices: Vec<Device>,
    nccl: bool,
    deadline: Duration,
}

/// How long a rank waits for the others where nothing else was said: longer than a checkpoint or a kernel's
/// compilation on one rank takes, short enough to free a cluster that waits for a dead machine.
const DEADLINE: Duration = Duration::from_secs(600);

impl Default for World {
    fn default() -> Self {
        Self::solo()
    }
}

impl World {
    /// One rank.
    pub fn solo() -> Self {
        Self::threads(1)
    }

    /// `ranks` ranks in this process, each to run in a thread of its own: on several GPUs, or all on one
    /// device to prove a run on a laptop.
    pub fn threads(ranks: usize) -> Self {
        Self {
            threads: ranks,
            #[cfg(feature = "mpi")]
            processes: false,
            devices: vec![],
            nccl: true,
            deadline: DEADLINE,
        }
    }

    /// Each process that `mpirun` or Slurm's `srun` started is a rank. Needs the feature `mpi`, and an MPI
    /// library where the program is built.
    ///
    /// ```text
    /// mpirun -n 4 target/release/train
    /// ```
    ///
    /// A process joins MPI once, at its first world, and leaves it when it exits: the exit waits until all
    /// processes have come as far, or the deadline has passed. Where a world failed it does not leave in
    /// order, which would wait for ranks that are gone, but gives the others up to five seconds to hear of
    /// it. Let the program end with an exit code that is not zero then, as an error returned from `main`
    /// does: `mpirun` ends what is left, stopped processes included, and so does `srun --kill-on-bad-exit`.
    #[cfg(feature = "mpi")]
    pub fn mpi() -> Self {
        Self { processes: true, ..Self::threads(1) }
    }

    /// `n` ranks in each process, as threads: process p has the ranks from `n * p`. Ranks of a process hand
    /// each other their tensors in memory, and reach the others by MPI. A world without MPI has one process.
    #[cfg(feature = "mpi")]
    pub fn threads_each(self, n: usize) -> Self {
        Self { threads: n, ..self }
    }

    /// The devices of this process's ranks, dealt in turn. Default: all use the model's. The model may be on
    /// another one, such as the host: a trainer brings it, or each rank's part of it, to the rank's device.
    ///
    /// Where each rank has a CUDA device of its own, there are no other processes, and NCCL is installed (as
    /// `libnccl.so`), NCCL makes the sums that all ranks get whole, unless [told not to](Self::nccl). All else goes
    /// through the host's memory.
    pub fn on(self, devices: Vec<Device>) -> Self {
        Self { devices, ..self }
    }

    /// Whether NCCL may make sums. Default: yes, where [it can](Self::on). Without it they are made in the host's
    /// memory, in rank order, so that their bits do not hang on the links between the devices.
    pub fn nccl(self, used: bool) -> Self {
        Self { nccl: used, ..self }
    }

    /// The device of one of this process's ranks, if devices were named.
    pub fn device(&self, local_rank: usize) -> Option<&Device> {
        self.devices.get(local_rank.checked_rem(self.devices.len())?)
    }

    /// How long a rank waits for the others in one call, before the run ends with
    /// [`WorldError::Deadline`]. Default: ten minutes.
    ///
    /// ```
    /// use std::time::Duration;
    /// use firebrick_strategies::{World, WorldError};
    ///
    /// let ranks = World::threads(2).deadline(Duration::from_millis(1)).join()?;
    /// // Rank 1 never calls.
    /// let error = ranks[0].barrier().unwrap_err();
    /// assert!(matches!(&error, WorldError::Deadline { ranks, .. } if *ranks == [1]));
    /// assert!(error.to_string().starts_with("within 1ms rank 1 did not arrive at barrier"));
    /// # Ok::<(), WorldError>(())
    /// ```
    pub fn deadline(self, limit: Duration) -> Self {
        Self { deadline: limit, ..self }
    }

    /// How long a rank waits for the others in one call.
    pub fn limit(&self) -> Duration {
        self.deadline
    }

    /// Joins this process's ranks: one communicator for each, to be moved to its thread.
    ///
    /// # Errors
    ///
    /// [`WorldError::Size`] for a world of no ranks. With MPI, [`WorldError::Mpi`] where no launcher started
    /// this process or MPI does not start, [`WorldError::Mismatch`] where processes differ in their number of
    /// threads, and [`WorldError::Deadline`] where one does not come.
    pub fn join(&self) -> Result<Vec<Communicator>, WorldError> {
        if self.threads == 0 {
            return Err(WorldError::Size(0));
        }
        #[cfg(feature = "mpi")]
        if self.processes {
            return mpi::join(self.threads, self.deadline);
        }
        let exchange = Arc::new(Exchange::new(self.threads, 0..self.threads, self.deadline));
        let devices: Option<Vec<_>> = (0..self.threads).map(|rank| self.device(rank).cloned()).collect();
        let on_devices = devices.filter(|_| self.nccl).and_then(OnDevices::of);
        let rank = |rank| Communicator::of(exchange.clone(), rank).summing(on_devices.clone());
        Ok((0..self.threads).map(rank).collect())
    }
}
