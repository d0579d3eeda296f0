//! What a run needs of a model family's configuration: a fresh one, and a small one to try strategies on.

use firebrick_datasets::{Labels, SpecialTokens};
use serde_json::{Map, Value};

use super::{LabelKind, ModelConfig, TaskConfig};
use firebrick_models::pretrained::HubConfig;
use firebrick_models::{BertConfig, Gpt2Config, LlamaConfig, T5Config};

/// What the data determines about a fresh model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes<'a> {
    /// Size of the vocabulary.
    pub vocabulary: usize,
    /// The longest row, in positions, that the model reads.
    pub positions: usize,
    pub special: &'a SpecialTokens,
}

/// Attention layers of the same kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attention {
    pub layers: usize,
    /// Width of all heads together.
    pub width: usize,
    /// Whether the queries (`of_source`) and the keys (`over_source`) are tokens of the source; otherwise they are
    /// tokens of the target. A model of a single sequence has only target tokens.
    pub of_source: bool,
    pub over_source: bool,
}

impl Attention {
    /// Returns the attention layers of a model of a single sequence.
    fn of_itself(layers: usize, width: usize) -> Vec<Self> {
        vec![Self { layers, width, of_source: false, over_source: false }]
    }
}

/// A family's configuration, as far as a run reads or changes it.
pub(crate) trait Family: HubConfig + Clone + Send + Sync + 'static {
    /// Returns a configuration for fresh weights, or `None` if the run file names another family.
    fn fresh(model: &ModelConfig, sizes: Sizes<'_>) -> Option<Self>;

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

    /// Sets the classes of the task.
    fn labelled(self, task: &TaskConfig, labels: Option<&Labels>) -> Self {
        let _ = (task, labels);
        self
    }
}

/// The ids of special tokens, under the names of `transformers`.
fn ids(special: &SpecialTokens) -> Map<String, Value> {
    let roles = [
        ("pad_token_id", special.pad),
        ("bos_token_id", special.bos.or(special.cls)),
        ("eos_token_id", special.eos.or(special.sep)),
    ];
    roles.into_iter().map(|(name, id)| (name.into(), id.into())).collect()
}

impl Family for Gpt2Config {
    fn fresh(model: &ModelConfig, Sizes { vocabulary, positions, special }: Sizes<'_>) -> Option<Self> {
        match model {
            ModelConfig::Gpt(shape) => {
                Some(Self { rest: ids(special), ..Self::of_shape(shape, vocabulary, positions) })
            }
            _ => None,
        }
    }

    fn layers(&self) -> usize {
        self.n_layer
    }

    fn with_layers(self, n_layer: usize) -> Self {
        Self { n_layer, ..self }
    }

    fn smallest(self) -> Self {
        Self { vocab_size: 1, n_positions: 1, n_embd: 1, n_head: 1, n_inner: Some(1), ..self }
    }

    fn attention(&self) -> Vec<Attention> {
        Attention::of_itself(self.n_layer, self.n_embd)
    }

    fn vocabulary(&self) -> usize {
        self.vocab_size
    }

    fn positions(&self) -> Option<usize> {
        Some(self.n_positions)
    }
}

impl Family for LlamaConfig {
    fn fresh(model: &ModelConfig, Sizes { vocabulary, positions, special }: Sizes<'_>) -> Option<Self> {
        let ModelConfig::Llama(shape) = model else { return None };
        Some(Self {
            vocab_size: vocabulary,
            max_position_embeddings: positions,
            hidden_size: shape.width,
            intermediate_size: shape.inner.unwrap_or((shape.width.saturating_mul(8) / 3).next_multiple_of(8)),
            num_hidden_layers: shape.layers,
            num_attention_heads: shape.heads,
            num_key_value_heads: Some(shape.key_value_heads.unwrap_or(shape.heads)),
            attention_dropout: shape.dropout,
            tie_word_embeddings: shape.tied,
            rest: ids(special),
            ..Self::default()
        })
    }

    fn layers(&self) -> usize {
        self.num_hidden_layers
    }

    fn with_layers(self, num_hidden_layers: usize) -> Self {
        Self { num_hidden_layers, ..self }
    }

    fn smallest(self) -> Self {
        // Rotary embeddings rotate pairs of numbers.
        Self {
            vocab_size: 1,
            hidden_size: 2,
            intermediate_size: 1,
            num_attention_heads: 1,
            num_key_value_heads: Some(1),
            head_dim: None,
            ..self
        }
    }

    fn attention(&self) -> Vec<Attention> {
        let head = self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads.max(1));
        Attention::of_itself(self.num_hidden_layers, self.num_attention_heads * head)
    }

    fn vocabulary(&self) -> usize {
        self.vocab_size
    }

    fn positions(&self) -> Option<usize> {
        None
    }
}

impl Family for BertConfig {
    fn fresh(model: &ModelConfig, Sizes { vocabulary, positions, special }: Sizes<'_>) -> Option<Self> {
        let ModelConfig::Bert(shape) = model else { return None };
        let mut rest = ids(special);
        rest.remove("pad_token_id");
        Some(Self {
            vocab_size: vocabulary,
            max_position_embeddings: positions,
            hidden_size: shape.width,
            intermediate_size: shape.inner.unwrap_or(shape.width.saturating_mul(4)),
            num_hidden_layers: shape.layers,
            num_attention_heads: shape.heads,
            hidden_dropout_prob: shape.dropout,
            attention_probs_dropout_prob: shape.dropout,
            pad_token_id: special.pad.map(|id| id as usize),
            rest,
            ..Self::default()
        })
    }

    fn layers(&self) -> usize {
        self.num_hidden_layers
    }

    fn with_layers(self, num_hidden_layers: usize) -> Self {
        Self { num_hidden_layers, ..self }
    }

    fn smallest(self) -> Self {
        Self { vocab_size: 1, hidden_size: 1, intermediate_size: 1, num_attention_heads: 1, ..self }
    }

    fn attention(&self) -> Vec<Attention> {
        Attention::of_itself(self.num_hidden_layers, self.hidden_size)
    }

    fn vocabulary(&self) -> usize {
        self.vocab_size
    }

    fn positions(&self) -> Option<usize> {
        Some(self.max_length())
    }

    fn reads_segments() -> bool {
        true
    }

    fn label_names(&self) -> Option<Vec<String>> {
        Some(BertConfig::label_names(self))
    }

    fn labelled(mut self, task: &TaskConfig, labels: Option<&Labels>) -> Self {
        if let TaskConfig::SequenceClassification { kind, .. } = task {
            let problem = match kind {
                LabelKind::Class => "single_label_classification",
                LabelKind::Classes => "multi_label_classification",
                LabelKind::Number => "regression",
            };
            self.rest.insert("problem_type".into(), problem.into());
            if *kind == LabelKind::Number {
                return self.with_labels(["LABEL_0"]);
            }
        }
        match labels {
            Some(labels) => self.with_labels(labels.names()),
            None => self,
        }
    }
}

impl Family for T5Config {
    fn fresh(model: &ModelConfig, Sizes { vocabulary, special, .. }: Sizes<'_>) -> Option<Self> {
        let ModelConfig::T5(shape) = model else { return None };
        let mut rest = ids(special);
        rest.insert("decoder_start_token_id".into(), special.pad.into());
        Some(Self {
            vocab_size: vocabulary,
            d_model: shape.width,
            d_kv: shape.width / shape.heads.max(1),
            d_ff: shape.inner.unwrap_or(shape.width.saturating_mul(4)),
            num_layers: shape.layers,
            num_heads: shape.heads,
            dropout_rate: shape.dropout,
            feed_forward_proj: if shape.gated { "gated-gelu" } else { "relu" }.into(),
            tie_word_embeddings: shape.tied,
            rest,
            ..Self::default()
        })
    }

    fn layers(&self) -> usize {
        self.num_layers
    }

    fn with_layers(self, layers: usize) -> Self {
        Self { num_layers: layers, num_decoder_layers: Some(layers), ..self }
    }

    fn smallest(self) -> Self {
        Self { vocab_size: 1, d_model: 1, d_kv: 1, d_ff: 1, num_heads: 1, ..self }
    }

    fn attention(&self) -> Vec<Attention> {
        let (encoder, width) = (self.num_layers, self.num_heads * self.d_kv);
        let decoder = self.num_decoder_layers.unwrap_or(encoder);
        let attention = |layers, of_source, over_source| Attention { layers, width, of_source, over_source };
        vec![
            attention(encoder, true, true),
            attention(decoder, false, false),
            attention(decoder, false, true),
        ]
    }

    fn reads_source(path: &str) -> bool {
        let asked = [".source.key.", ".source.value."];
        path.starts_with("encoder.") || asked.iter().any(|part| path.contains(part))
    }

    fn vocabulary(&self) -> usize {
        self.vocab_size
    }

    fn positions(&self) -> Option<usize> {
        None
    }

    fn start(&self) -> Option<u32> {
        self.rest.get("decoder_start_token_id")?.as_u64()?.try_into().ok()
    }

    fn starting_from(mut self, start: u32) -> Self {
        self.rest.insert("decoder_start_token_id".into(), start.into());
        self
    }
}
