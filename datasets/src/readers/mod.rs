//! Reads records from files, one by one.

mod chunks;
mod conll;
mod conll_sentence;
mod corpus;
mod delimited;
mod files;
mod format;
mod jsonl;
mod lines;
mod parallel;
#[cfg(feature = "parquet")]
mod parquet;
mod tag_scheme;
mod text;
mod unpacked;

pub use chunks::TextChunks;
pub use conll::ConllReader;
pub use corpus::Corpus;
pub use delimited::DelimitedReader;
pub use files::Files;
pub use format::Format;
pub use jsonl::JsonlReader;
pub use parallel::ParallelReader;
#[cfg(feature = "parquet")]
pub use parquet::ParquetReader;
pub use tag_scheme::{TagFault, TagScheme, Tags};
pub use text::{TextReader, TextUnit};

use std::{iter, path::Path};

use crate::{DataError, ReadError, Record, Records};

impl DataError {
    /// Creates the error of a file that cannot be used.
    fn file(path: &Path, expected: impl Into<String>, found: impl Into<String>) -> Self {
        ReadError::File { path: path.to_owned(), expected: expected.into(), found: found.into() }.into()
    }

    /// Creates the error of a reader's setting.
    fn setting(setting: &'static str, expected: impl Into<String>, found: impl Into<String>) -> Self {
        ReadError::ReaderSetting { setting, expected: expected.into(), found: found.into() }.into()
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
    use crate::{ReadError, RecordPlace};

    #[test]
    fn reading_continues_only_after_record_errors() {
        let place = RecordPlace { file: Path::new("x").into(), line: 1 };
        let record = Record::new(place, Vec::new());
        let of_record = record.expected("a", "b");
        let of_file = DataError::Read(ReadError::NoPart { part: 0, parts: 0 });
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
