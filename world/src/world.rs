//! World: the recipe for the ranks of a run.

use std::sync::Arc;
use std::time::Duration;

use burn::tensor::Device;

use crate::exchange::Exchange;
use crate::meeting::{Places, meet};
use crate::{Communicator, DeviceCollectives, Link, WorldError};

/// A recipe for the ranks of a run. Nothing starts before [`join`](Self::join).
///
/// ```
/// use burn::tensor::Device;
/// use firebrick_world::World;
///
/// let world = World::threads(4).on(vec![Device::flex()]);
/// assert_eq!(world.device(3), Some(&Device::flex()));
/// assert_eq!(world.join()?.len(), 4);
/// # Ok::<(), firebrick_world::WorldError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct World {
    /// Ranks in each process.
    threads: usize,
    /// Whether MPI joins further processes.
    #[cfg(feature = "mpi")]
    processes: bool,
    devices: Vec<Device>,
    nccl: bool,
    link: Option<Link>,
    deadline: Duration,
}

/// The default time that a rank waits for the others: longer than a checkpoint or a kernel's compilation on one
/// rank takes, short enough to free a cluster that waits for a dead machine.
const DEADLINE: Duration = Duration::from_secs(600);

impl Default for World {
    fn default() -> Self {
        Self::solo()
    }
}

impl World {
    /// Creates a world of one rank.
    pub fn solo() -> Self {
        Self::threads(1)
    }

    /// Creates a world of `ranks` ranks in this process, each running in its own thread: on several GPUs, or all on
    /// one device to test a distributed run on a laptop.
    pub fn threads(ranks: usize) -> Self {
        Self {
            threads: ranks,
            #[cfg(feature = "mpi")]
            processes: false,
            devices: vec![],
            nccl: true,
            link: None,
            deadline: DEADLINE,
        }
    }

    /// Creates a world in which each process that `mpirun` or Slurm's `srun` started is a rank. Requires the feature
    /// `mpi`, and an MPI library at build time.
    ///
    /// ```text
    /// mpirun -n 4 target/release/train
    /// ```
    ///
    /// A process joins MPI once, at its first world, and leaves it when it exits. The exit waits until all
    /// processes have reached it or the deadline has passed. If a world failed, the process skips the orderly shutdown,
    /// which would wait for ranks that are gone, and gives the others up to five seconds to receive the
    /// error. In that case let the program end with a nonzero exit code, as returning an error from `main`
    /// does: `mpirun` then ends the remaining processes, including stopped ones, and so does `srun --kill-on-bad-exit`.
    #[cfg(feature = "mpi")]
    pub fn mpi() -> Self {
        Self { processes: true, ..Self::threads(1) }
    }

    /// Runs `n` ranks in each process, as threads; process p has the `n` ranks from `n * p`. Ranks of one process
    /// pass tensors in memory and reach the others through MPI, where what several ranks of a process get alike, such as a
    /// gathered shard, crosses once. A world without MPI has one process.
    #[cfg(feature = "mpi")]
    pub fn threads_each(self, n: usize) -> Self {
        Self { threads: n, ..self }
    }

    /// Assigns devices to this process's ranks, round-robin. Default: all ranks use the model's device. The model may
    /// be on another device, such as the host: the trainer moves it, or each rank's part of it, to the rank's device.
    ///
    /// If each rank, of one process or of several, has its own CUDA device, and NCCL is installed everywhere (as
    /// `libnccl.so.2`, version 2.14 or later), NCCL sums, gathers and shifts, unless [`nccl`](Self::nccl) turns it off. What one rank
    /// alone sends or receives goes through host memory. [`Communicator::through_host`] says why all of it does.
    pub fn on(self, devices: Vec<Device>) -> Self {
        Self { devices, ..self }
    }

    /// Sets whether NCCL may exchange tensors. Default: true, if [it can](Self::on). Without NCCL the host sums in rank
    /// order, and the bits do not depend on the links between the devices. All processes need the same setting.
    pub fn nccl(self, used: bool) -> Self {
        Self { nccl: used, ..self }
    }

    /// Simulates a network between ranks that are threads: each rank has this link. Default: none, messages arrive at once.
    /// The ranks then exchange through host memory, where the link is simulated, whatever devices they have.
    pub fn over_link(self, link: Link) -> Self {
        Self { link: Some(link), ..self }
    }

    /// Returns the device of one of this process's ranks, if devices were assigned.
    pub fn device(&self, local_rank: usize) -> Option<&Device> {
        self.devices.get(local_rank.checked_rem(self.devices.len())?)
    }

    /// Sets how long a rank waits for the others in one call before the call returns
    /// [`WorldError::Deadline`]. Default: ten minutes.
    ///
    /// ```
    /// use std::time::Duration;
    /// use firebrick_world::{World, WorldError};
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

    /// Returns how long a rank waits for the others in one call.
    pub fn limit(&self) -> Duration {
        self.deadline
    }

    /// Joins this process's ranks and returns one communicator for each. Move each to its thread.
    ///
    /// # Errors
    ///
    /// [`WorldError::Size`] for a world of no ranks; [`WorldError::Link`] for a link that carries nothing. With MPI,
    /// [`WorldError::Mpi`] if no launcher started this process, MPI does not start, or a link is to be simulated,
    /// [`WorldError::Mismatch`] if the processes' numbers of threads differ, and [`WorldError::Deadline`] if a process does
    /// not join in time.
    pub fn join(&self) -> Result<Vec<Communicator>, WorldError> {
        if self.threads == 0 {
            return Err(WorldError::Size(0));
        }
        self.link.map_or(Ok(()), Link::check)?;
        #[cfg(feature = "mpi")]
        if self.processes {
            if self.link.is_some() {
                let reason = "a link is simulated among the threads of one process only; leave it out";
                return Err(WorldError::Mpi(reason.into()));
            }
            return crate::mpi::join(self.threads, self.deadline, || self.between_devices());
        }
        let exchange =
            Arc::new(Exchange::new(self.threads, 0..self.threads, self.deadline).over_link(self.link));
        let ranks = (0..self.threads).map(|rank| Communicator::of(exchange.clone(), rank));
        let (places, between) = self.between_devices();
        Ok(meet(ranks.collect(), &[places], between))
    }

    /// Returns what distinguishes this process's devices, one a rank, if NCCL may and can exchange between them, or why it
    /// may not; and the collectives of each.
    fn between_devices(&self) -> (Places, Vec<DeviceCollectives>) {
        let devices = (0..self.threads).map(|rank| self.device(rank).cloned()).collect::<Option<Vec<_>>>();
        let found = match devices {
            _ if !self.nccl => Err("NCCL is turned off".into()),
            _ if self.link.is_some() => Err("a link is simulated".into()),
            Some(devices) => DeviceCollectives::nccl(&devices),
            None => Err("the ranks have no devices of their own".into()),
        };
        match found {
            Ok((places, between)) => (Ok(places), between),
            Err(why) => (Err(why), vec![]),
        }
    }
}
