//! The data of a run: where it is, how it is read, tokenized and cut.

use std::path::PathBuf;
use std::sync::Arc;

use firebrick_datasets::{Encoder, Format, Malformed, Padding, SpecialNames, Tokenizer, Until};
use serde::{Deserialize, Serialize};

/// Where the data is, and how it is read, tokenized and cut into samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// A file, a folder, or a pattern with `*`; or a list of them. `.gz` and `.zst` are read in
    /// place. Either this or `mix`.
    #[serde(default)]
    pub path: Option<Paths>,
    /// Several corpora, each drawn from in proportion to its weight.
    #[serde(default)]
    pub mix: Vec<Corpus>,
    /// When an epoch of a mix ends. Default: `AllAreUsedUp`.
    #[serde(default)]
    pub mix_until: Until,
    /// The data for evaluation. Default: the end of the training data, `valid_fraction` of it; of a
    /// `mix` or a `stream` there is none.
    #[serde(default)]
    pub valid: Option<Paths>,
    /// How the files are read. Default: by their ending.
    #[serde(default)]
    pub format: Option<Format>,
    /// Endings of the files that are read from a folder. Default: `txt` and `md`.
    #[serde(default)]
    pub extensions: Vec<String>,
    /// What is done about malformed records: `Stop` or `Skip`. Default: `Stop`.
    #[serde(default)]
    pub malformed: Malformed,
    /// What turns text into token ids.
    pub tokenizer: TokenizerConfig,
    /// The tokens that have a role, by name. Default: what the tokenizer's files say.
    #[serde(default)]
    pub special: SpecialNames,
    /// Tokens that a window of a causal language model predicts; the model's context.
    #[serde(default)]
    pub block: Option<usize>,
    /// The most tokens of a sample, special ones included; longer ones are cut. Default: one more
    /// than `block` if that is given, or else the tokenizer's `model_max_length`, if it has one.
    #[serde(default)]
    pub max_length: Option<usize>,
    /// What is cut off a sample becomes further samples, which repeat so many tokens of the one
    /// before. Default: it is lost.
    #[serde(default)]
    pub stride: Option<usize>,
    /// How rows are padded: `(side: Right, multiple_of: 8, to: Longest)`. Default: at the side that
    /// the tokenizer says, or else the right, to the longest.
    #[serde(default)]
    pub padding: Option<Padding>,
    /// Whether a batch is made of samples of about the same length. Default: no.
    #[serde(default)]
    pub group_by_length: bool,
    /// Reads samples from the files as they are needed, and shuffles so many at a time. Default: all
    /// are in memory, and shuffled as a whole.
    #[serde(default)]
    pub stream: Option<usize>,
    /// The share of the data, at its end, that is kept for evaluation if `valid` is not given.
    /// Default: 0.1.
    #[serde(default = "default_valid_fraction")]
    pub valid_fraction: f64,
    /// Threads that prepare batches ahead. Default: 1.
    #[serde(default = "default_workers")]
    pub workers: usize,
}

fn default_valid_fraction() -> f64 {
    0.1
}

fn default_workers() -> usize {
    1
}

impl DataConfig {
    /// The most tokens of a sample, if there is a bound.
    pub(crate) fn most_tokens(&self, tokenizer: &Tokenizer) -> Option<usize> {
        let of_block = self.block.map(|block| block + 1);
        self.max_length.or(of_block).or(tokenizer.model_max_length())
    }

    /// The most tokens of a row, padding included, if there is a bound.
    pub(crate) fn longest_row(&self, tokenizer: &Tokenizer) -> Option<usize> {
        self.most_tokens(tokenizer).map(|most| self.padding(tokenizer).length(most))
    }

    /// What tokenizes texts; `most` is the most tokens of one, where it is not as for all.
    pub(crate) fn encoder(&self, tokenizer: &Arc<Tokenizer>, most: Option<usize>) -> Encoder {
        let most = most.or(self.most_tokens(tokenizer));
        let encoder = Encoder::new(tokenizer.clone()).max_length(most).stride(self.stride);
        encoder.cut(tokenizer.truncation_side().unwrap_or_default())
    }

    /// How rows are padded.
    pub(crate) fn padding(&self, tokenizer: &Tokenizer) -> Padding {
        let side = tokenizer.padding_side().unwrap_or_default();
        self.padding.unwrap_or(Padding::default().side(side))
    }

    /// Where the training data is, in a few words.
    pub(crate) fn summary(&self) -> String {
        match &self.path {
            Some(paths) => paths.summary(),
            None => format!("a mix of {}", self.mix.len()),
        }
    }
}

/// One path, or several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a path in quotes, or a list of paths")]
pub enum Paths {
    /// One.
    One(PathBuf),
    /// Several, in order.
    Several(Vec<PathBuf>),
}

impl Paths {
    /// The paths as a slice.
    pub fn as_slice(&self) -> &[PathBuf] {
        match self {
            Self::One(path) => std::slice::from_ref(path),
            Self::Several(paths) => paths,
        }
    }

    /// The paths in a few words.
    pub(crate) fn summary(&self) -> String {
        match self.as_slice() {
            [] => "nothing".into(),
            [path] => path.display().to_string(),
            [first, rest @ ..] => format!("{} and {} more", first.display(), rest.len()),
        }
    }
}

/// One corpus of a mix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Corpus {
    /// As `data.path`.
    pub path: Paths,
    /// Its share of the samples, in proportion to the others'.
    pub weight: f64,
    /// As `data.format`.
    #[serde(default)]
    pub format: Option<Format>,
}

/// What turns text into token ids.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum TokenizerConfig {
    /// One token per distinct character of the text.
    Characters,
    /// Byte-level BPE, trained on the training part of the text.
    Bpe {
        /// Size of the vocabulary, at least 257.
        vocabulary: usize,
    },
    /// Any `tokenizer.json`, or the folder that it is in.
    File(PathBuf),
}
