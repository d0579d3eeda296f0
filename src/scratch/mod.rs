//! Tensors that wait on a disk instead of in memory.
//!
//! A rank has one [`ScratchFile`], without a name in its folder, so that nothing is left of it however the run ends. It is
//! divided into extents, one per [`Stored`] bucket of tensors. Buckets are written and read in parallel with the
//! computation, by a few threads each, and each chunk of what is read must have the checksum of what was written.
//!
//! ```text
//! file.rs        ScratchFile: the file, which parts of it are free, and buffers that direct I/O accepts
//! stored.rs      Stored: a bucket of tensors in the file
//! disk_params.rs DiskParams: the parameters of blocks in the file
//! lazy.rs        models whose parameters wait in the file
//! stand_in.rs    zeros in place of a value
//! error.rs       ScratchError
//! ```

use std::path::Path;

mod disk_params;
mod error;
mod file;
mod lazy;
mod stand_in;
mod stored;

pub(crate) use disk_params::{DiskParams, NewValues, Values, Written};
pub use error::ScratchError;
pub(crate) use file::ScratchFile;
pub(crate) use stored::{Stored, StoredTensor, TensorInMemory, Unwritten};

/// Checks that tensors can be kept on a disk in this folder, before anything else is read or computed.
///
/// # Errors
///
/// The folder does not exist or cannot be written into.
///
/// ```
/// let error = firebrick::require_scratch("/no/such/folder".as_ref()).unwrap_err();
/// assert!(error.to_string().contains("must name an existing folder"));
/// ```
pub fn require_scratch(folder: &Path) -> Result<(), ScratchError> {
    ScratchFile::create(folder, 0).map(drop)
}
