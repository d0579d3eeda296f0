//! Compressed data that cannot be unpacked.

use std::io;

/// Says that the bytes of a compressed file are damaged. It travels within an [`io::Error`] through readers that know
/// nothing of compression, and becomes the error of a file: its path and permissions are in order.
#[derive(Debug, thiserror::Error)]
#[error("{found}")]
pub(crate) struct Unpacking {
    /// What the data should be.
    pub(crate) expected: &'static str,
    /// What was found.
    pub(crate) found: String,
}

impl From<Unpacking> for io::Error {
    fn from(error: Unpacking) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}
