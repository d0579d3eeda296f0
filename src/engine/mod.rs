//! The engine: how a session makes updates, and how ranks stay in step.
//!
//! ```text
//! session/           the live state of a run: master, replica, stages, optimizer
//! training_loop/     the loop over rounds: steps, evaluations, saves
//! step.rs            the numbers of one update
//! late.rs            numbers that may still be on the device
//! feed.rs            the global batches, and each rank's share of them
//! optional_batch.rs  a batch that some ranks lack
//! agreement.rs       what ranks agree upon: sums, errors, the end
//! reference/         what losses ask a reference model, before the first update
//! ranks.rs           runs a function on each rank
//! elementwise.rs     proves that an optimizer updates each element by itself
//! dry_run/           tries a model in a smaller dtype before the run
//! block_times.rs     measures blocks before ranks divide them
//! ```

pub mod agreement;
pub(crate) mod block_times;
pub mod dry_run;
pub(crate) mod elementwise;
pub mod feed;
pub(crate) mod late;
pub(crate) mod optional_batch;
pub mod ranks;
pub mod reference;
pub mod session;
pub mod step;
pub(crate) mod training_loop;
