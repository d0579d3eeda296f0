//! Finds the comments of a CoNLL file.

use std::{path::Path, sync::Arc};

use super::lines::{Lines, is_blank};
use crate::DataError;

/// The layout of a file's first line of columns. Lines that start with `#` are compared to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    tabs: bool,
    columns: usize,
}

/// Which lines are comments.
#[derive(Debug, Clone, Copy)]
pub(super) enum Comments {
    /// No line.
    None,
    /// Every line that starts with `#`.
    All,
    /// Lines that cannot be words of the file. There is no layout if every line starts with `#`.
    Detect(Option<Layout>),
}

impl Comments {
    /// Applies a setting to a file. `None` reads the file up to its first line of columns.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`], and the error of a broken compressed file.
    pub(super) fn of(setting: Option<bool>, path: &Arc<Path>, longest: usize) -> Result<Self, DataError> {
        Ok(match setting {
            Some(true) => Self::All,
            Some(false) => Self::None,
            None => Self::Detect(Layout::of(path, longest)?),
        })
    }

    /// Returns whether a line is a comment. `first` is true if the line is not within a sentence.
    pub(super) fn has(self, line: &str, first: bool) -> bool {
        let Some(rest) = line.strip_prefix('#') else { return false };
        match self {
            Self::None => false,
            Self::All => true,
            Self::Detect(layout) => {
                let text = rest.starts_with(' ');
                match layout {
                    // `#` would be a column of its own here, so a line without a tab has no label.
                    Some(Layout { tabs: true, .. }) if !line.contains('\t') => first || text,
                    // Applies only between sentences: elsewhere, the line is malformed, which is an error.
                    Some(Layout { tabs: false, columns })
                        if first && !line.contains('\t') && columns_of(line).count() != columns =>
                    {
                        true
                    }
                    _ => first && text && rest.contains('='),
                }
            }
        }
    }
}

impl Layout {
    fn of(path: &Arc<Path>, longest: usize) -> Result<Option<Self>, DataError> {
        let mut lines = Lines::open(path, longest)?;
        loop {
            match lines.next() {
                Ok(None) => return Ok(None),
                Ok(Some(line)) if is_blank(line) || line.starts_with(['#', '-']) => {}
                Ok(Some(line)) => {
                    let layout = Self { tabs: line.contains('\t'), columns: columns_of(line).count() };
                    return Ok(Some(layout));
                }
                // Reading the records reports this error again.
                Err(error) if error.is_about_a_record() => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Splits a line into columns: at tabs if it has one, otherwise at spaces.
pub(super) fn columns_of(line: &str) -> impl Iterator<Item = &str> + Clone {
    let tabs = line.contains('\t');
    line.split(if tabs { '\t' } else { ' ' }).filter(move |column| tabs || !column.is_empty())
}
