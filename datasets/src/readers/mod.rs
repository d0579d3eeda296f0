//! Reads records from files, one by one.

mod chunks;
mod conll;
mod conll_comments;
mod conll_sentence;
mod corpus;
mod delimited;
mod files;
mod folder;
mod format;
mod json;
mod jsonl;
mod lines;
mod malformed;
mod parallel;
mod parquet;
mod record;
mod row_lines;
mod tag_scheme;
mod text;
mod unpacked;

pub use chunks::TextChunks;
pub use conll::ConllReader;
pub use corpus::Corpus;
pub(crate) use corpus::read_whole;
pub use delimited::DelimitedReader;
pub use files::Files;
pub use format::Format;
pub use jsonl::JsonlReader;
pub use malformed::{Malformed, Skipped};
pub use parallel::ParallelReader;
pub use parquet::ParquetReader;
pub use record::{Place, Record, Value};
pub use tag_scheme::{TagFault, TagScheme, Tags};
pub use text::{TextReader, TextUnit};
pub(crate) use unpacked::open_ordinary;

use std::{fmt, iter};

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
    /// [`DataError::NoPart`] if there is no such part, [`DataError::Io`] if it cannot be opened, and any error of the
    /// format.
    fn open(&self, part: usize) -> Result<Records, DataError>;
}

impl<R: Reader + ?Sized> Reader for Box<R> {
    fn parts(&self) -> usize {
        (**self).parts()
    }

    fn open(&self, part: usize) -> Result<Records, DataError> {
        (**self).open(part)
    }
}

/// Yields the records that `next` returns, up to the first error that is not about one record.
fn records(mut next: impl FnMut() -> Result<Option<Record>, DataError> + Send + 'static) -> Records {
    let mut ended = false;
    Box::new(iter::from_fn(move || {
        if ended {
            return None;
        }
        let item = next();
        ended = match &item {
            Ok(record) => record.is_none(),
            Err(error) => !error.is_about_a_record(),
        };
        item.transpose()
    }))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn only_an_error_about_a_record_is_followed_by_more() {
        let place = Place { file: Path::new("x").into(), line: 1 };
        let record = Record::new(place, Vec::new());
        let of_record = record.expected("a", "b");
        let of_file = DataError::NoPart { part: 0, parts: 0 };
        let items = [
            Ok(Some(record.clone())),
            Err(of_record),
            Ok(Some(record.clone())),
            Err(of_file),
            Ok(Some(record)),
        ];
        let mut items = items.into_iter();
        let read: Vec<_> = records(move || items.next().unwrap()).map(|item| item.is_ok()).collect();
        assert_eq!(read, [true, false, true, false]);
    }
}
