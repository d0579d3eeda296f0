//! Records, and what reads them.

mod fingerprinted;
mod malformed;
mod record;

use std::fmt;

pub use fingerprinted::Fingerprinted;
pub use malformed::{Malformed, Skipped};
#[cfg(feature = "text")]
pub(crate) use record::brief;
pub use record::{Record, Value};

use crate::DataError;

/// The records of one part, in order.
///
/// After an error that is [about one record](DataError::is_about_a_record), the iterator continues with the next
/// record; after any other error it ends.
pub type Records = Box<dyn Iterator<Item = Result<Record, DataError>> + Send>;

/// A source of records that can be read from the start any number of times.
///
/// It consists of parts, usually files, that can be read independently. Reading holds one record in memory at a time,
/// so the parts may be larger than memory.
pub trait Reader: fmt::Debug + Send + Sync + 'static {
    /// Returns the number of parts.
    fn parts(&self) -> usize;

    /// Starts reading a part.
    ///
    /// # Errors
    ///
    /// [`ReadError::NoPart`](crate::ReadError::NoPart) if there is no such part, [`DataError::Io`] if it cannot be
    /// opened, and any error of the format.
    fn open(&self, part: usize) -> Result<Records, DataError>;

    /// Returns the names of the classes that the whole numbers of a field stand for, by number, if the files say so.
    /// Default: they do not.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or files name the classes of the field differently.
    fn class_names(&self, field: &str) -> Result<Option<Vec<String>>, DataError> {
        let _ = field;
        Ok(None)
    }
}

impl<R: Reader + ?Sized> Reader for Box<R> {
    fn parts(&self) -> usize {
        (**self).parts()
    }

    fn open(&self, part: usize) -> Result<Records, DataError> {
        (**self).open(part)
    }

    fn class_names(&self, field: &str) -> Result<Option<Vec<String>>, DataError> {
        (**self).class_names(field)
    }
}
