//! Which lines of a CoNLL file are comments.

use std::{path::Path, sync::Arc};

use super::lines::{Lines, is_blank};
use crate::DataError;

/// How the first line of columns in a file is built. A line that starts with `#` is compared to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    tabs: bool,
    columns: usize,
}

/// Says which lines are comments.
#[derive(Debug, Clone, Copy)]
pub(super) enum Comments {
    /// No line is.
    None,
    /// Every line that starts with `#` is.
    All,
    /// Those that cannot be words of the file. It has no layout if each of its lines starts with `#`.
    Detect(Option<Layout>),
}

impl Comments {
    /// What a setting means for this file. `None` reads the file up to its first line of columns.
    ///
    /// # Errors
    ///
    /// [`DataError::Io`], and that of a packed file that is broken.
    pub(super) fn of(setting: Option<bool>, path: &Arc<Path>, longest: usize) -> Result<Self, DataError> {
        Ok(match setting {
            Some(true) => Self::All,
            Some(false) => Self::None,
            None => Self::Detect(Layout::of(path, longest)?),
        })
    }

    /// Whether a line is a comment. `first` says that no word of its sentence stands before it.
    pub(super) fn has(self, line: &str, first: bool) -> bool {
        let Some(rest) = line.strip_prefix('#') else { return false };
        match self {
            Self::None => false,
            Self::All => true,
            Self::Detect(layout) => {
                let text = rest.starts_with(' ');
                match layout {
                    // `#` is a whole column here, so a line without a tab has no label at all.
                    Some(Layout { tabs: true, .. }) if !line.contains('\t') => first || text,
                    // Only before a sentence: elsewhere it is a damaged line, which is an error.
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
                // It will be met again.
                Err(error) if error.is_about_a_record() => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// The columns of a line: separated by tabs if it has one, else by spaces.
pub(super) fn columns_of(line: &str) -> impl Iterator<Item = &str> + Clone {
    let tabs = line.contains('\t');
    line.split(if tabs { '\t' } else { ' ' }).filter(move |column| tabs || !column.is_empty())
}
