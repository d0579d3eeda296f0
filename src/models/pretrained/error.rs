//! What can be wrong with a Hugging Face folder.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

/// A folder that cannot be read as the model that was asked for, or not be written.
#[derive(Debug, Error)]
pub enum PretrainedError {
    /// The system refused.
    #[error("{path}: {doing}: {reason}")]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// The system's reason.
        reason: String,
    },
    /// There is no such folder: perhaps the name of a model on the Hugging Face Hub.
    #[error(
        "{folder}: there is no such folder; a model is read from this machine: fetch its folder, such as with `hf download {folder} --local-dir {folder}`"
    )]
    NoFolder {
        /// What was named.
        folder: PathBuf,
    },
    /// `config.json` is no configuration of the model.
    #[error("{path}: {reason}")]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and where.
        reason: String,
    },
    /// `config.json` asks for what is not there.
    #[error("config.json, `{field}`: expected {expected}, found {found}")]
    Setting {
        /// The field.
        field: &'static str,
        /// What is supported.
        expected: String,
        /// What the field says.
        found: String,
    },
    /// There are no weights in a format that is read.
    #[error(
        "{folder}: expected model.safetensors or model.safetensors.index.json, found {found}; weights in another format can be saved as safetensors with `save_pretrained` of transformers"
    )]
    NoWeights {
        /// The folder.
        folder: PathBuf,
        /// What is there instead.
        found: String,
    },
    /// The index of several files does not fit them.
    #[error("{path}: {reason}; fetch the folder again")]
    Index {
        /// The index.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file of weights is damaged, or of another format.
    #[error("{path}: {reason}; fetch the file again")]
    Weights {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The tensors are not those of the model.
    #[error(transparent)]
    Tensors(Box<Unfit>),
}

impl PretrainedError {
    /// A [`PretrainedError::File`], from any error.
    pub(super) fn file(path: impl Into<PathBuf>, doing: &'static str, reason: impl ToString) -> Self {
        Self::File { path: path.into(), doing, reason: reason.to_string() }
    }

    /// A [`PretrainedError::Setting`].
    pub(in crate::models) fn setting(
        field: &'static str,
        expected: impl Into<String>,
        found: impl ToString,
    ) -> Self {
        Self::Setting { field, expected: expected.into(), found: found.to_string() }
    }
}

/// Where the tensors of a folder and the parameters of a model differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Error)]
pub struct Unfit {
    /// The folder.
    pub folder: PathBuf,
    /// What it was read as, such as `BertForMaskedLM`.
    pub architecture: String,
    /// Tensors that the model needs and the files lack: name and shape.
    pub missing: Vec<(String, Vec<usize>)>,
    /// Tensors of the files that the model has no place for: name and shape.
    pub extra: Vec<(String, Vec<usize>)>,
    /// Tensors of another shape: name, expected, found.
    pub misshapen: Vec<(String, Vec<usize>, Vec<usize>)>,
    /// Tensors of a dtype other than f32, f16 and bf16: name and dtype.
    pub mistyped: Vec<(String, String)>,
    /// Tensors that are tied in the model and have numbers of their own in the files: name, and what it is tied to.
    pub untied: Vec<(String, String)>,
}

impl Unfit {
    /// Whether there is no difference.
    pub fn is_empty(&self) -> bool {
        let Self { missing, extra, misshapen, mistyped, untied, .. } = self;
        let same_names = missing.is_empty() && extra.is_empty();
        same_names && misshapen.is_empty() && mistyped.is_empty() && untied.is_empty()
    }
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { folder, architecture, .. } = self;
        write!(f, "{}: its tensors are not those of {architecture} as config.json has it", folder.display())?;
        let missing = self.missing.iter().map(|(name, shape)| format!("{name}, expected {shape:?}"));
        list(f, "missing", missing)?;
        let extra = self.extra.iter().map(|(name, shape)| format!("{name}, found {shape:?}"));
        list(f, "not of this model", extra)?;
        let misshapen = self.misshapen.iter();
        let shapes = |(name, expected, found): &(String, Vec<usize>, Vec<usize>)| {
            format!("{name}, expected {expected:?}, found {found:?}")
        };
        list(f, "of another shape", misshapen.map(shapes))?;
        let mistyped = self.mistyped.iter();
        let dtypes =
            |(name, dtype): &(String, String)| format!("{name}, expected F32, F16 or BF16, found {dtype}");
        list(f, "of another dtype", mistyped.map(dtypes))?;
        let untied = self.untied.iter();
        let ties =
            |(name, to): &(String, String)| format!("{name}, expected the numbers of {to}, found others");
        list(f, "tied in the model", untied.map(ties))?;
        write!(f, "; load it as the model that it is, or correct config.json")
    }
}

/// The first of many lines, and how many more there are.
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
