//! What a checkpoint promises, one file for each promise. One program, since each that is linked takes its time.

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
mod saving;
mod slices;
mod state;
