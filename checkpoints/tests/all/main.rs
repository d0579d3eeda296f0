//! The guarantees of a checkpoint, one file for each. A single program, because linking each takes time.

mod columns;
mod consolidate;
mod corpus;
mod corruption;
#[cfg(unix)]
mod crash;
mod diff;
#[cfg(unix)]
mod faults;
mod faulty_disk;
mod forged;
mod formats;
mod packed;
mod saving;
mod slices;
mod state;
