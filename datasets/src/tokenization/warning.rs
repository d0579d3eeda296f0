//! What a tokenizer's folder asks for that does not happen, or happens in some versions of transformers only.

use std::{
    fmt,
    path::{Path, PathBuf},
};

/// A field next to a `tokenizer.json` that some version of transformers follows and this crate does not.
///
/// The tokenizer works, but its ids may differ from those that a model was trained on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TokenizerWarning {
    /// The file.
    pub path: PathBuf,
    /// The field.
    pub field: String,
    /// What transformers does, what happens instead, and what to do.
    pub message: String,
}

impl TokenizerWarning {
    pub(super) fn new(path: &Path, field: impl Into<String>, message: String) -> Self {
        Self { path: path.to_owned(), field: field.into(), message }
    }
}

impl fmt::Display for TokenizerWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`, field `{}`: {}", self.path.display(), self.field, self.message)
    }
}
