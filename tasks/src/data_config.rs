//! The data of a run: where it is, and how it is read, tokenized and cut into samples.

use std::path::PathBuf;
use std::sync::Arc;

use firebrick_datasets::{
    Corpus as WholeText, DataError, Encoder, Format, Malformed, Padding, SpecialNames, Tokenizer, Until,
};
use serde::{Deserialize, Serialize};

use crate::Paths;
use crate::progress::progress;
use firebrick::ByteSize;

/// Where the data is, and how it is read, tokenized and cut into samples.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataConfig {
    /// A file, a folder, or a pattern with `*`; or a list of them. `.gz` and `.zst` files are decompressed while they
    /// are read. `hub:org/name@revision/file` is a file of a data set on the Hugging Face Hub, which the program downloads.
    /// Give either this or `mix`.
    pub path: Option<Paths>,
    /// Several corpora, each sampled in proportion to its weight.
    #[serde(default)]
    pub mix: Vec<Corpus>,
    /// When an epoch of a mix ends. Default: `AllAreUsedUp`.
    #[serde(default)]
    pub mix_until: Until,
    /// The validation data. Default: the last `valid_fraction` of the training data; a `mix` of several
    /// corpora or a `stream` has no default.
    pub valid: Option<Paths>,
    /// The format of the files. Default: determined by their extensions.
    pub format: Option<Format>,
    /// Extensions of the files that are read from a folder. Default: `txt` and `md`.
    #[serde(default)]
    pub extensions: Vec<String>,
    /// How malformed records are handled: `Stop` or `Skip`. Default: `Stop`.
    #[serde(default)]
    pub malformed: Malformed,
    /// The tokenizer.
    pub tokenizer: TokenizerConfig,
    /// The special tokens, by name. Default: those that the tokenizer's files define.
    #[serde(default)]
    pub special: SpecialNames,
    /// Tokens that are added to a tokenizer from a file, unless it has them, as with `add_tokens` of transformers. A model
    /// of a folder gets rows for them, each the mean of its other rows. Default: none.
    #[serde(default)]
    pub new_tokens: Vec<String>,
    /// The number of tokens that a window of a causal language model predicts, which is the model's context length.
    pub block: Option<usize>,
    /// The most tokens of a sample, special tokens included; longer samples are truncated. Default: `block + 1` if
    /// `block` is given, otherwise the tokenizer's `model_max_length`, if it has one.
    pub max_length: Option<usize>,
    /// Turns the truncated part of a sample into further samples, each of which repeats this many tokens of the one
    /// before. Default: the truncated part is dropped.
    pub stride: Option<usize>,
    /// How rows are padded: `(side: Right, multiple_of: 8, to: Longest)`. Default: to the longest row, on the side that
    /// the tokenizer defines, otherwise on the right.
    pub padding: Option<Padding>,
    /// Whether batches are made of samples of similar length. Default: no.
    #[serde(default)]
    pub group_by_length: bool,
    /// Reads samples from the files as they are needed, and shuffles them within a window of this many. Default: all
    /// samples are loaded into memory and shuffled together.
    pub stream: Option<usize>,
    /// The most bytes of text that compressed plain text files may unpack to, where the whole text is held in memory: a
    /// number, or a text such as `"4GB"`. Default: 1 GiB.
    pub max_unpacked: Option<ByteSize>,
    /// The share of the data, taken from its end, that is used for validation if `valid` is not given. Default: 0.1.
    #[serde(default = "default_valid_fraction")]
    pub valid_fraction: f64,
    /// Whether tokens, and a vocabulary that the run learns, are kept for later runs and taken from earlier ones.
    /// Default: yes.
    #[serde(default = "default_cache")]
    pub cache: bool,
    /// Threads that prepare batches ahead. Default: 1.
    #[serde(default = "default_workers")]
    pub workers: usize,
}

impl DataConfig {
    /// Creates the settings of files and a tokenizer, with the defaults of a run file for all else.
    pub fn new(path: impl Into<PathBuf>, tokenizer: TokenizerConfig) -> Self {
        Self {
            path: Some(path.into().into()),
            mix: Vec::new(),
            mix_until: Until::default(),
            valid: None,
            format: None,
            extensions: Vec::new(),
            malformed: Malformed::default(),
            tokenizer,
            special: SpecialNames::default(),
            new_tokens: Vec::new(),
            block: None,
            max_length: None,
            stride: None,
            padding: None,
            group_by_length: false,
            stream: None,
            max_unpacked: None,
            valid_fraction: default_valid_fraction(),
            cache: default_cache(),
            workers: default_workers(),
        }
    }
}

fn default_valid_fraction() -> f64 {
    0.1
}

fn default_cache() -> bool {
    true
}

fn default_workers() -> usize {
    1
}

impl DataConfig {
    /// Returns the most tokens of a sample, if there is a limit.
    pub(crate) fn most_tokens(&self, tokenizer: &Tokenizer) -> Option<usize> {
        let of_block = self.block.map(|block| block + 1);
        self.max_length.or(of_block).or(tokenizer.model_max_length())
    }

    /// Returns the most tokens of a row, padding included, if there is a limit.
    pub fn longest_row(&self, tokenizer: &Tokenizer) -> Option<usize> {
        self.most_tokens(tokenizer).map(|most| self.padding(tokenizer).length(most))
    }

    /// Returns the encoder of texts; `most` overrides the most tokens of a text.
    pub fn encoder(&self, tokenizer: &Arc<Tokenizer>, most: Option<usize>) -> Encoder {
        let most = most.or(self.most_tokens(tokenizer));
        let encoder = Encoder::new(tokenizer.clone()).max_length(most).stride(self.stride);
        encoder.cut(tokenizer.truncation_side().unwrap_or_default())
    }

    /// Returns how rows are padded.
    pub fn padding(&self, tokenizer: &Tokenizer) -> Padding {
        let side = tokenizer.padding_side().unwrap_or_default();
        self.padding.unwrap_or(Padding::default().side(side))
    }

    /// Whether these files are read as plain text, with all their line ends.
    pub fn is_plain_text(&self, paths: &Paths) -> bool {
        let is_text = |path: &PathBuf| matches!(Format::of(path), Err(_) | Ok(Format::Text { .. }));
        self.format.is_none() && paths.as_slice().iter().all(is_text)
    }

    /// Reads plain text files, one text for each path. Says every second how much it has read.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or compressed files unpack to more than [`max_unpacked`](Self::max_unpacked).
    pub fn plain_texts(&self, paths: &Paths, say: &dyn Fn(&str)) -> Result<Vec<String>, DataError> {
        let mut progress = progress(say, "MB of text");
        let most = self.max_unpacked.map_or(WholeText::MOST_UNPACKED, |ByteSize(bytes)| bytes as u64);
        let texts = WholeText::read_all(paths.as_slice(), &self.extensions, most, |bytes| {
            progress((bytes / 1_000_000) as usize);
        })?;
        Ok(texts.into_iter().map(WholeText::into_text).collect())
    }

    /// Describes where the training data is, in a few words.
    pub(crate) fn summary(&self) -> String {
        match &self.path {
            Some(paths) => paths.summary(),
            None => format!("a mix of {}", self.mix.len()),
        }
    }
}

/// One corpus of a mix.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Corpus {
    /// The corpus's files, as in `data.path`.
    pub path: Paths,
    /// The corpus's share of the samples, relative to the other weights.
    pub weight: f64,
    /// The format of the files, as in `data.format`.
    pub format: Option<Format>,
}

/// The tokenizer.
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
    /// Any `tokenizer.json`, or the folder that it is in; or `hub:org/name@revision`, on the Hugging Face Hub, which the
    /// program downloads.
    File(PathBuf),
}
