//! What a run needs to know about a family of models.
//!
//! ```text
//! mod.rs        Family: a configuration, and its entry in a run file
//! trainable.rs  Trainable: a model with the head of a task
//! ranges.rs     ranges of settings that several families have
//! ```

mod ranges;
mod trainable;

use std::fmt::Debug;

use firebrick_datasets::SpecialTokens;
use firebrick_datasets::collators::Labels;
use firebrick_strategies::SettingError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::inference::LabelKind;
use crate::pretrained::HubConfig;

pub(crate) use ranges::Transformer;
pub use trainable::Trainable;

/// What the data determines about a fresh model.
#[derive(Clone, Copy, Debug)]
pub struct Sizes<'a> {
    /// Size of the vocabulary.
    pub vocabulary: usize,
    /// The longest row, in positions, that the model reads.
    pub positions: usize,
    /// The special tokens of the tokenizer.
    pub special: &'a SpecialTokens,
}

/// Attention layers of the same kind.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// The number of layers.
    pub layers: usize,
    /// Width of all heads together.
    pub width: usize,
    /// Whether the queries are tokens of the source; otherwise they are tokens of the target. A model of a single
    /// sequence has only target tokens.
    pub of_source: bool,
    /// Whether the keys are tokens of the source.
    pub over_source: bool,
}

impl Attention {
    /// Returns the attention layers of a model of a single sequence.
    pub fn of_itself(layers: usize, width: usize) -> Vec<Self> {
        vec![Self { layers, width, of_source: false, over_source: false }]
    }
}

/// A family's configuration, as far as a run reads or changes it, and the entry of the run file that describes a fresh
/// model.
pub trait Family: HubConfig + Clone + Send + Sync + 'static {
    /// The shape of a fresh model: the entry of the run file.
    type Shape: Debug + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static;

    /// The settings of the shape that a resumed run may change. Default: none.
    const CHANGEABLE: &'static [&'static str] = &[];

    /// Checks the ranges of the shape's settings. A shape that passes must give a configuration that passes
    /// [`check`](HubConfig::check), because each model is saved with its configuration.
    ///
    /// # Errors
    ///
    /// The first setting that is out of range.
    fn check_shape(shape: &Self::Shape) -> Result<(), SettingError>;

    /// Returns a configuration for fresh weights.
    fn fresh(shape: &Self::Shape, sizes: Sizes<'_>) -> Self;

    /// Number of transformer blocks; in an encoder-decoder, those of the encoder alone.
    fn layers(&self) -> usize;

    /// Returns the same configuration with another number of blocks in each stack.
    fn with_layers(self, layers: usize) -> Self;

    /// Returns a configuration with the same parts under the same names, but the smallest parameters.
    fn smallest(self) -> Self;

    /// Returns the attention layers.
    fn attention(&self) -> Vec<Attention>;

    /// Whether the source's tokens pass through the parameter at this path, in a model with a source and a target.
    fn reads_source(_: &str) -> bool {
        false
    }

    /// Size of the vocabulary.
    fn vocabulary(&self) -> usize;

    /// Returns the same configuration with another vocabulary, for a tokenizer with more tokens than a folder's model.
    /// Default: the configuration itself, so that such a tokenizer is refused.
    fn with_vocabulary(self, vocabulary: usize) -> Self {
        let _ = vocabulary;
        self
    }

    /// The most tokens of a row that the model can read, if there is a limit.
    fn positions(&self) -> Option<usize>;

    /// Whether the model reads the segments of a pair.
    fn reads_segments() -> bool {
        false
    }

    /// Returns the names of the classes, if the model has a classifier.
    fn label_names(&self) -> Option<Vec<String>> {
        None
    }

    /// Returns the token that the decoder of an encoder-decoder starts from.
    fn start(&self) -> Option<u32> {
        None
    }

    /// Sets the token that the decoder starts from, if the model is an encoder-decoder.
    fn starting_from(self, _: u32) -> Self {
        self
    }

    /// Sets the names of a classifier's labels; `kind` is what a text's label is, and `None` if words have labels.
    fn labelled(self, kind: Option<LabelKind>, labels: Option<&Labels>) -> Self {
        let _ = (kind, labels);
        self
    }
}

/// The ids of special tokens, under the names of `transformers`.
pub(crate) fn ids(special: &SpecialTokens) -> Map<String, Value> {
    let roles = [
        ("pad_token_id", special.pad),
        ("bos_token_id", special.bos.or(special.cls)),
        ("eos_token_id", special.eos.or(special.sep)),
    ];
    roles.into_iter().map(|(name, id)| (name.into(), id.into())).collect()
}

pub(crate) fn yes() -> bool {
    true
}
