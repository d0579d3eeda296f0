//! Errors of reading and writing Hugging Face folders.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

/// A folder cannot be read as the requested model, or cannot be written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PretrainedError {
    /// An operation of the file system failed.
    #[error("{path}: cannot {doing}: {reason}")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The operation.
        doing: &'static str,
        /// The system's reason.
        reason: String,
    },
    /// The folder does not exist; perhaps it is the name of a model on the Hugging Face Hub.
    #[error(
        "{folder}: there is no such folder; models are read from local files: download its folder, for example with `hf download {folder} --local-dir {folder}`"
    )]
    NoFolder {
        /// The folder as given.
        folder: PathBuf,
    },
    /// `config.json` is not a valid configuration of the model.
    #[error("{path}: {reason}")]
    Config {
        /// The file.
        path: PathBuf,
        /// The problem and its position.
        reason: String,
    },
    /// `config.json` requests something unsupported.
    #[error("config.json, `{field}`: expected {expected}, found {found}")]
    Setting {
        /// The field.
        field: &'static str,
        /// What is supported.
        expected: String,
        /// The field's value.
        found: String,
    },
    /// The folder has no weights in a supported format.
    #[error(
        "{folder}: expected model.safetensors or model.safetensors.index.json, found {found}; convert other formats to safetensors with the `save_pretrained` of transformers"
    )]
    NoWeights {
        /// The folder.
        folder: PathBuf,
        /// The files found instead.
        found: String,
    },
    /// The index of several files does not match them.
    #[error("{path}: {reason}; download the folder again")]
    Index {
        /// The index.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// A file of weights is damaged or in another format.
    #[error("{path}: {reason}; download the file again")]
    Weights {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// The tensors do not match the model's.
    #[error(transparent)]
    Tensors(Box<Unfit>),
}

impl PretrainedError {
    /// A [`PretrainedError::File`], from any error.
    pub(super) fn file(path: impl Into<PathBuf>, doing: &'static str, reason: impl ToString) -> Self {
        Self::File { path: path.into(), doing, reason: reason.to_string() }
    }

    /// A [`PretrainedError::Setting`].
    pub(crate) fn setting(field: &'static str, expected: impl Into<String>, found: impl ToString) -> Self {
        Self::Setting { field, expected: expected.into(), found: found.to_string() }
    }
}

/// The differences between the tensors of a folder and the parameters of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Error)]
pub struct Unfit {
    /// The folder.
    pub folder: PathBuf,
    /// The class that it was read as, such as `BertForMaskedLM`.
    pub architecture: String,
    /// Tensors that the model needs but the files lack: name and shape.
    pub missing: Vec<(String, Vec<usize>)>,
    /// Tensors of the files without a place in the model: name and shape.
    pub extra: Vec<(String, Vec<usize>)>,
    /// Tensors with a different shape: name, expected, found.
    pub misshapen: Vec<(String, Vec<usize>, Vec<usize>)>,
    /// Tensors of a dtype other than f32, f16 and bf16: name and dtype.
    pub mistyped: Vec<(String, String)>,
    /// Tensors that are tied in the model but have values of their own in the files: name, and the name of the tied
    /// tensor.
    pub untied: Vec<(String, String)>,
}

impl Unfit {
    /// Whether there are no differences.
    pub fn is_empty(&self) -> bool {
        let Self { missing, extra, misshapen, mistyped, untied, .. } = self;
        let same_names = missing.is_empty() && extra.is_empty();
        same_names && misshapen.is_empty() && mistyped.is_empty() && untied.is_empty()
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { folder, architecture, .. } = self;
        write!(
            f,
            "{}: its tensors do not match {architecture} as config.json describes it",
            folder.display()
        )?;
        let missing = self.missing.iter().map(|(name, shape)| format!("{name}, expected {shape:?}"));
        list(f, "missing", missing)?;
        let extra = self.extra.iter().map(|(name, shape)| format!("{name}, found {shape:?}"));
        list(f, "not part of this model", extra)?;
        let misshapen = self.misshapen.iter();
        let shapes = |(name, expected, found): &(String, Vec<usize>, Vec<usize>)| {
            format!("{name}, expected {expected:?}, found {found:?}")
        };
        list(f, "of a different shape", misshapen.map(shapes))?;
        let mistyped = self.mistyped.iter();
        let dtypes =
            |(name, dtype): &(String, String)| format!("{name}, expected F32, F16 or BF16, found {dtype}");
        list(f, "of a different dtype", mistyped.map(dtypes))?;
        let untied = self.untied.iter();
        let ties = |(name, to): &(String, String)| {
            format!("{name}, expected the values of {to}, found different ones")
        };
        list(f, "tied in the model", untied.map(ties))?;
        write!(f, "; load it as the right model, or correct config.json")
    }
}

/// Writes the first lines of a list, and the number of further lines.
fn list(f: &mut fmt::Formatter<'_>, what: &str, lines: impl ExactSizeIterator<Item = String>) -> fmt::Result {
    const SHOWN: usize = 20;
    let rest = lines.len().saturating_sub(SHOWN);
    if lines.len() > 0 {
        write!(f, "\n  {what}:")?;
    }
    for line in lines.take(SHOWN) {
        write!(f, "\n    {line}")?;
    }
    if rest > 0 { write!(f, "\n    and {rest} more") } else { Ok(()) }
}
