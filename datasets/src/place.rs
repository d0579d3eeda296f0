//! The place of a record, for errors.

use std::{fmt, path::Path, sync::Arc};

/// The place of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordPlace {
    /// The file.
    pub file: Arc<Path>,
    /// The line on which the record begins, from 1; in a format without lines, the record's number.
    pub line: u64,
}

impl fmt::Display for RecordPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}
