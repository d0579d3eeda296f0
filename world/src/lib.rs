//! The ranks of a training run, and the collectives with which they exchange data.
//!
//! A [`World`] is a recipe; [`World::join`] turns it into one [`Communicator`] for each rank of this process. The same
//! calls serve ranks that are a single process, threads of one process, or processes on many machines. The crate knows
//! tensors and buffers; it knows nothing of models, optimizers, strategies or training.
//!
//! ```text
//! world.rs         World: the recipe for the ranks of a run
//! communicator.rs  Communicator: a rank's handle, its rank and size, barrier and failure
//! tensors.rs       collectives on tensors
//! gathering.rs     all-gathers that have begun: start early, wait later
//! uploading.rs     gathered parts on their way to a GPU
//! summing.rs       sums that have begun
//! on_devices.rs    collectives between devices, without the host
//! joined.rs        the parts of a call as buffers, for them
//! device_collectives.rs  what makes them: NCCL, or a program
//! nccl/            NCCL between ranks that are threads or processes
//! collectives.rs   collectives on several parts at once, in host memory
//! from_root.rs     broadcast and scatter
//! flat.rs          flat tensors between devices and host memory, with one copy for all of one dtype
//! worker.rs        threads that do pieces of work for a rank
//! queue.rs         work that one thread does, piece by piece
//! seat.rs          a rank's place in the exchange
//! exchange.rs      the primitive below every collective: each rank of a group sends each rank a message
//! slot.rs          the messages for one rank in one call
//! group.rs         the ranks that call together
//! meeting.rs       whether all ranks can exchange between their devices
//! message.rs       what ranks send one another
//! link.rs          a simulated link, with a bandwidth and a latency
//! remote.rs        the route to ranks of other processes
//! call.rs          the part of a call that ranks must agree on
//! sum.rs           sums in rank order, rounded once
//! buffers.rs       tensors as buffers on their way between ranks, borrowed without a copy
//! host.rs          host memory: as a device, and tensors' values in it
//! reads.rs         reads of several results at once
//! mpi/             ranks in other processes
//! launchers.rs     the environment variables that launchers set for each process
//! traffic.rs       counters of the data sent and received
//! timeline.rs      what a rank computes, exchanges and waits for, and when
//! error.rs         the errors
//! ```
//!
//! Four ranks as threads, each with a number, of which every rank receives the sum:
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use firebrick_world::World;
//!
//! let ranks = World::threads(4).join()?;
//! let sums = std::thread::scope(|scope| {
//!     let threads = ranks.into_iter().map(|rank| {
//!         scope.spawn(move || {
//!             let mine = Tensor::<1>::from_data([rank.rank() as f32], &Device::flex());
//!             rank.all_reduce(mine).map(|sum| sum.into_scalar::<f32>())
//!         })
//!     });
//!     let threads: Vec<_> = threads.collect();
//!     threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Result<Vec<_>, _>>()
//! });
//! assert_eq!(sums?, [6.0; 4]);
//! # Ok::<(), firebrick_world::WorldError>(())
//! ```
//!
//! # Faults
//!
//! No fault makes a rank hang. If a rank [fails](Communicator::fail), panics, ends early, makes a different call than
//! the others, or misses the [deadline](World::deadline), every other rank's current or next call returns an
//! error that names it.
//!
//! # Features
//!
//! `mpi` adds `World::mpi`, and needs an MPI library and libclang to build;
//! `cuda` exchanges between CUDA devices with NCCL, where that is installed.

mod buffers;
mod call;
mod collectives;
mod communicator;
mod device_collectives;
mod error;
mod exchange;
mod flat;
mod from_root;
mod gathering;
mod group;
mod host;
mod joined;
mod launchers;
mod link;
mod meeting;
mod message;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(feature = "nccl")]
mod nccl;
mod on_devices;
mod queue;
mod reads;
mod remote;
mod seat;
mod slot;
mod sum;
mod summing;
mod tensors;
#[cfg(test)]
mod testing;
mod timeline;
mod traffic;
mod uploading;
mod worker;
mod world;

#[cfg(test)]
mod collectives_tests;
#[cfg(test)]
mod faults_tests;
#[cfg(test)]
mod groups_tests;

pub use call::{Collective, PartShape};
pub use communicator::Communicator;
pub use device_collectives::DeviceCollectives;
pub use error::WorldError;
pub use flat::moved;
pub use gathering::Gathering;
pub use host::{count_read, host_device, is_host, joined, on_host, reads};
pub use launchers::{LAUNCHERS, Launcher};
pub use link::Link;
pub use reads::{all_on_host, numbers};
pub use summing::Summing;
pub use timeline::{Activity, Event, Lane, Open, Span, Timeline};
pub use traffic::{Moved, Traffic};
pub use uploading::Uploading;
pub use world::World;
