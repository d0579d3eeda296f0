//! The ranks of a training run, and the collectives with which they exchange data.
//!
//! A [`World`] is a recipe; [`World::join`] turns it into one [`Communicator`] for each rank of this process. The same
//! calls serve ranks that are a single process, threads of one process, or processes on many machines. The crate knows
//! tensors and buffers; it knows nothing of models, optimizers, strategies or training.
//!
//! ```text
//! world.rs         World: the recipe for the ranks of a run
//! communicator.rs  Communicator: a rank's handle, its rank and size, barrier and failure
//! gathering.rs     all-gathers and shifts that have begun: start early, wait later
//! uploading.rs     gathered parts on their way to a GPU
//! summing.rs       sums that have begun
//! on_devices.rs    collectives between devices, without the host
//! joined.rs        the parts of a call as buffers, for them
//! device_collectives.rs  what makes them: NCCL, or a program
//! nccl/            NCCL between ranks that are threads or processes
//! collectives.rs   collectives on several parts at once, in host memory; broadcast and scatter; collectives on tensors
//! point_to_point.rs  messages from one rank to another, which no other rank waits for
//! flat.rs          flat tensors between devices and host memory, with one copy for all of one dtype
//! seat.rs          a rank's place in the exchange, and threads that do pieces of work for a rank
//! exchange.rs      the primitive below every collective: each rank of a group sends each rank a message
//! meeting.rs       whether all ranks can exchange between their devices
//! message.rs       what ranks send one another, the messages for one rank in one call, and the route to other processes
//! link.rs          a simulated link, with a bandwidth and a latency
//! call.rs          the part of a call that ranks must agree on, and the ranks that call together
//! sum.rs           sums in rank order, rounded once
//! host.rs          host memory: as a device, tensors' values in it, and buffers on their way between ranks
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

mod call;
mod collectives;
mod communicator;
mod device_collectives;
mod error;
mod exchange;
mod flat;
mod gathering;
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
mod point_to_point;
mod seat;
mod sum;
mod summing;
#[cfg(test)]
mod testing;
mod timeline;
mod traffic;
mod uploading;
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
pub use host::{all_on_host, count_read, host_device, is_host, joined, numbers, on_host, reads};
pub use launchers::{LAUNCHERS, Launcher};
pub use link::Link;
pub use summing::Summing;
pub use timeline::{Activity, Event, Lane, Open, Span, Timeline};
pub use traffic::{Moved, Traffic};
pub use uploading::Uploading;
pub use world::World;
