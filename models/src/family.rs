//! What a run needs to know about a family of models.

use std::fmt::Debug;

use firebrick::Objective;
use firebrick_datasets::collators::Labels;
use firebrick_datasets::{Batch, SpecialTokens};
use firebrick_strategies::SettingError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::WrittenScores;
use crate::inference::{Answers, LabelKind};
use crate::pretrained::{HubConfig, MOST_LAYERS, MOST_SIZE, Pretrained};

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
    /// Width of all heads of keys together, and of values: less than `width` where queries share them.
    pub key_width: usize,
    /// Whether the queries are tokens of the source; otherwise they are tokens of the target. A model of a single
    /// sequence has only target tokens.
    pub of_source: bool,
    /// Whether the keys are tokens of the source.
    pub over_source: bool,
}

impl Attention {
    /// Returns the attention layers of a model of a single sequence.
    pub fn of_itself(layers: usize, width: usize) -> Vec<Self> {
        vec![Self { layers, width, key_width: width, of_source: false, over_source: false }]
    }
}

/// The share of a model's widths that a narrower one has: `units` of `of` equal parts.
///
/// ```
/// use firebrick_models::family::Narrowing;
///
/// // 64 query heads and 8 key heads of 128 numbers, narrowed to 2 parts of 32.
/// let to = Narrowing { units: 2, of: 32 };
/// assert_eq!(to.width(8192), Some(512));
/// assert_eq!(to.width(100), None);
/// assert_eq!(to.heads([64, 8], 128), Some(([16, 2], 32)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Narrowing {
    /// The parts that the narrower model has.
    pub units: usize,
    /// The parts that the model is divided into.
    pub of: usize,
}

impl Narrowing {
    /// Returns this share of a width, if the parts are of equal size.
    pub fn width(self, width: usize) -> Option<usize> {
        width.is_multiple_of(self.of).then(|| width / self.of * self.units)
    }

    /// Returns this share of a vocabulary, which is rounded up to parts of equal size; all of one that rounding would change by more
    /// than a thousandth.
    ///
    /// ```
    /// use firebrick_models::family::Narrowing;
    ///
    /// let to = Narrowing { units: 2, of: 16 };
    /// assert_eq!(to.vocabulary(50_257), 2 * 3142);
    /// assert_eq!(to.vocabulary(250), 250);
    /// ```
    pub fn vocabulary(self, tokens: usize) -> usize {
        let part = tokens.div_ceil(self.of);
        if (part * self.of - tokens) * 1000 > tokens { tokens } else { part * self.units }
    }

    /// Returns this share of the numbers of query heads and of key heads, and the numbers in a head. As far as the key heads
    /// cannot be divided, heads are narrower instead, and the same in each number of units. They stay even, as rotated
    /// positions need them.
    pub fn heads(self, [queries, keys]: [usize; 2], numbers: usize) -> Option<([usize; 2], usize)> {
        let by_heads = common_divisor(keys, self.of);
        let of_head = self.of / by_heads;
        let divides = numbers.is_multiple_of(of_head) && (numbers / of_head).is_multiple_of(2);
        let share = |heads: usize| heads / by_heads * self.units;
        (divides && queries.is_multiple_of(by_heads))
            .then(|| ([share(queries), share(keys)], numbers / of_head))
    }
}

fn common_divisor(one: usize, other: usize) -> usize {
    if other == 0 { one } else { common_divisor(other, one % other) }
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

    /// Returns the configuration of a model of the same proportions whose widths are a share of this one's, if they can be:
    /// of the hidden state, the heads and the feed-forward layers, but not the vocabulary, which
    /// [`with_vocabulary`](Self::with_vocabulary) sets, and the positions. Plans follow
    /// from passes through such models, in place of wide ones. Default: none.
    fn narrowed(&self, to: Narrowing) -> Option<Self> {
        let _ = to;
        None
    }

    /// Returns the attention layers.
    fn attention(&self) -> Vec<Attention>;

    /// Whether the source's tokens pass through the parameter at this path, in a model with a source and a target.
    fn reads_source(&self, _: &str) -> bool {
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
    fn reads_segments(&self) -> bool {
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

/// A model with the head of a task, which run files can name once it is registered there.
///
/// A model of your own implements:
///
/// - [`Pretrained`]: its new weights, and the names of its parameters in Hugging Face folders,
/// - [`Family`] for its configuration: the model's entry in a run file, and what the configuration says about a model,
/// - [`Objective`]: its loss,
/// - [`Answers`]: its predictions for texts,
/// - this trait: the task that it learns.
pub trait Trainable: Pretrained<Config: Family> + Objective<Self::Batch> + Answers + Clone + 'static {
    /// The task that the model learns, by its name in a run file.
    const TASK: &'static str;

    /// The batches that the model is trained on, those of the task.
    type Batch: Batch;

    /// Returns whether the model [divides](firebrick_strategies::Pass::context_columns) the tokens of a batch among the ranks
    /// that share it. A run with such ranks is refused for other models. Default: no.
    fn divides_tokens(_: &Self::Config) -> bool {
        false
    }

    /// Returns the same model, which generates and scores texts in evaluation if its task supports it.
    fn scoring(self, _: WrittenScores) -> Self {
        self
    }
}

/// The settings of a transformer.
///
/// Their ranges are those of a configuration in a Hugging Face folder, because each model is saved as one.
pub(crate) struct Transformer {
    pub layers: usize,
    pub heads: usize,
    pub width: usize,
    pub inner: Option<usize>,
    /// The width inside a feed-forward layer if `inner` is not given.
    pub default_inner: usize,
    pub dropout: f64,
}

impl Transformer {
    pub fn check(self) -> Result<(), SettingError> {
        let Self { layers, heads, width, inner, default_inner, dropout } = self;
        let possible = (1..=MOST_LAYERS).contains(&layers);
        let expected = format!("at least 1 and at most {MOST_LAYERS} (for a larger model, raise `width`)");
        SettingError::require(possible, "layers", expected, layers)?;
        for (setting, size) in [("heads", heads), ("width", width), ("inner", inner.unwrap_or(1))] {
            let possible = (1..=MOST_SIZE).contains(&size);
            let expected = format!("at least 1 and at most {MOST_SIZE}");
            SettingError::require(possible, setting, expected, size)?;
        }
        let expected = format!("a multiple of `heads`, which is {heads}");
        SettingError::require(width.is_multiple_of(heads), "width", expected, width)?;
        let possible = inner.is_some() || default_inner <= MOST_SIZE;
        let expected = format!(
            "small enough that the default feed-forward width, {default_inner}, is at most {MOST_SIZE}"
        );
        SettingError::require(possible, "width", expected, width)?;
        let within = (0.0..1.0).contains(&dropout);
        SettingError::require(within, "dropout", "at least 0 and below 1", dropout)
    }
}

#[cfg(test)]
mod tests {
    use firebrick_datasets::SpecialTokens;
    use proptest::prelude::*;

    use super::*;
    use crate::bert::BertShape;
    use crate::family::{Family, Sizes};
    use crate::llama::LlamaShape;
    use crate::t5::T5Shape;
    use crate::{
        BartConfig, BartShape, BertConfig, Gpt2Config, GptConfig, LlamaConfig, ModernBertConfig,
        ModernBertShape, T5Config,
    };

    /// Numbers of all magnitudes, and those at a limit.
    fn sizes() -> impl Strategy<Value = usize> {
        let limits = [0, 1, 2, MOST_LAYERS, MOST_LAYERS + 1, MOST_SIZE / 4, MOST_SIZE, MOST_SIZE + 2];
        let powers = (0u32..40, 0usize..4).prop_map(|(power, more)| (1usize << power) + more);
        prop_oneof![powers, prop::sample::select(limits.to_vec())]
    }

    /// A run file must not describe a model that its `config.json` rejects once the data is read.
    fn can_be_saved<C: Family>(shape: &C::Shape) -> Result<(), TestCaseError> {
        if C::check_shape(shape).is_ok() {
            let special = SpecialTokens::default();
            let config = C::fresh(shape, Sizes { vocabulary: 10, positions: 10, special: &special });
            prop_assert!(config.check().is_ok(), "{shape:?}: {:?}", config.check());
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn a_shape_that_is_accepted_can_be_saved(
            (layers, heads, times, width) in (sizes(), sizes(), sizes(), sizes()),
            (multiple, given) in (any::<bool>(), prop::option::of(sizes())),
            key_value_heads in prop::option::of(sizes()),
            (layers_fit, heads_fit) in (any::<bool>(), any::<bool>()),
        ) {
            let (layers, heads) = (if layers_fit { 1 } else { layers }, if heads_fit { 1 } else { heads });
            let width = if multiple { heads.saturating_mul(times) } else { width };
            let (dropout, tied, inner) = (0.0, true, given);
            can_be_saved::<Gpt2Config>(&GptConfig { layers, heads, width, dropout, bias: true, tied })?;
            can_be_saved::<LlamaConfig>(&LlamaShape { layers, heads, key_value_heads, width, inner, dropout, tied })?;
            can_be_saved::<BartConfig>(&BartShape { layers, heads, width, inner, dropout })?;
            can_be_saved::<BertConfig>(&BertShape { layers, heads, width, inner, dropout })?;
            let window = times;
            can_be_saved::<ModernBertConfig>(&ModernBertShape { layers, heads, width, inner, window, dropout })?;
            can_be_saved::<T5Config>(&T5Shape { layers, heads, width, inner, dropout, gated: true, tied })?;
        }
    }
}
