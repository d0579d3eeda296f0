//! Checkpoints that are there whole or not at all.

mod checkpoint;
mod consolidate;
mod diff;
mod digest;
mod disk;
mod dtypes;
mod elements;
mod error;
mod examine;
mod file_names;
mod folder;
mod header;
mod manifest;
mod piece;
mod rank_files;
mod regular;
mod retention;
mod scalar;
mod staging;
mod tensors;
mod verify;

pub use checkpoint::Checkpoint;
pub use consolidate::{Consolidate, Consolidated, What, consolidate};
pub use diff::{Change, Diff, Section, diff};
pub use digest::Digest;
pub use disk::{Disk, RealDisk};
pub use error::{CheckpointError, Result};
pub use folder::{Folder, Saved};
pub use manifest::{FileEntry, Manifest};
pub use piece::{Bytes, Piece, RankState};
pub use retention::Keep;
pub use safetensors::Dtype;
pub use scalar::Scalar;
pub use staging::Staging;
pub use tensors::{Info, Tensors};
pub use verify::{Report, verify};

/// The version of the format that is written, and the only one that is read.
pub const FORMAT: u32 = 1;
