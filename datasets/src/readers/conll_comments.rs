//! Finds the comments of a CoNLL file.

use std::{path::Path, sync::Arc};

use super::{
    TagScheme,
    lines::{Lines, is_blank},
};
use crate::DataError;

/// The layout of a file's first line of columns. Lines that start with `#` are compared to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    tabs: bool,
    columns: usize,
    /// The column of the labels.
    label: i32,
    /// Whether its label marks entities: `O`, or a letter and a type.
    tags: bool,
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

/// What a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    /// A comment.
    Comment,
    /// Columns.
    Columns,
    /// One of the two; the file does not say which. With the number of columns that a word would have.
    Unclear(usize),
}

impl Comments {
    /// Applies a setting to a file. `None` reads the file up to its first line of columns. `label` is the column of the
    /// labels.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`], and the error of a broken compressed file.
    pub(super) fn of(
        setting: Option<bool>,
        label: i32,
        path: &Arc<Path>,
        longest: usize,
    ) -> Result<Self, DataError> {
        Ok(match setting {
            Some(true) => Self::All,
            Some(false) => Self::None,
            None => Self::Detect(Layout::of(label, path, longest)?),
        })
    }

    /// Returns whether a line is a comment. `first` is true if the line is not within a sentence.
    pub(super) fn line(self, line: &str, first: bool) -> Line {
        match (self, line.strip_prefix('#')) {
            (Self::None, _) | (_, None) => Line::Columns,
            (Self::All, Some(_)) => Line::Comment,
            (Self::Detect(layout), Some(rest)) => detect(layout, line, rest, first),
        }
    }
}

/// Decides about a line that starts with `#`. The readers of the shared tasks have no rule for these, so this one asks
/// what the line would be as a word of this file.
fn detect(layout: Option<Layout>, line: &str, rest: &str, first: bool) -> Line {
    let spaced = rest.starts_with(' ');
    let named = spaced && rest.contains('=');
    let Some(Layout { tabs, columns, label, tags }) = layout else {
        return if first && named { Line::Comment } else { Line::Columns };
    };
    let found = columns_of(line).count();
    // Whether the line ends as words of the file do.
    let tagged = tags && cell(line, label).is_some_and(TagScheme::is_tag);
    match () {
        // Without a tab, it has no label. `#hashtag` alone is more likely a word whose label is missing.
        () if tabs && !line.contains('\t') && (first || spaced) => Line::Comment,
        () if tabs && !line.contains('\t') => Line::Columns,
        () if first && named => Line::Comment,
        () if found == columns && (tagged || !tags) => Line::Columns,
        () if found == columns && named => Line::Comment,
        () if found == columns => Line::Unclear(columns),
        () if tagged => Line::Unclear(columns),
        () if first || spaced => Line::Comment,
        () if found == 1 => Line::Columns,
        () => Line::Unclear(columns),
    }
}

impl Layout {
    fn of(label: i32, path: &Arc<Path>, longest: usize) -> Result<Option<Self>, DataError> {
        let mut lines = Lines::open(path, longest)?;
        loop {
            match lines.next() {
                Ok(None) => return Ok(None),
                Ok(Some(line)) if is_blank(line) || line.starts_with(['#', '-']) => {}
                Ok(Some(line)) => {
                    let (tabs, columns) = (line.contains('\t'), columns_of(line).count());
                    let tags = cell(line, label).is_some_and(TagScheme::is_tag);
                    return Ok(Some(Self { tabs, columns, label, tags }));
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

/// Returns a column of a line, counted from 0, or from -1 backwards from the last.
fn cell(line: &str, column: i32) -> Option<&str> {
    let index = column.unsigned_abs() as usize;
    let mut columns = columns_of(line);
    if column < 0 {
        columns.clone().count().checked_sub(index).and_then(|index| columns.nth(index))
    } else {
        columns.nth(index)
    }
}
