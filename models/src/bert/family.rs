//! BERT, an encoder, and its relatives.

use firebrick_datasets::collators::Labels;
use firebrick_strategies::SettingError;
use serde::{Deserialize, Serialize};

use super::BertConfig;
use crate::family::{Attention, Family, Narrowing, Sizes, Transformer, ids};
use crate::inference::LabelKind;

/// The shape of a fresh [`BertConfig`](crate::BertConfig).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BertShape {
    /// Transformer blocks.
    pub layers: usize,
    /// Number of attention heads, a divisor of `width`.
    pub heads: usize,
    /// Size of the hidden state.
    pub width: usize,
    /// The width inside a feed-forward layer. Default: 4 times `width`.
    #[serde(default)]
    pub inner: Option<usize>,
    /// Dropout probability of activations and attention weights. Default: 0.
    #[serde(default)]
    pub dropout: f64,
}

/// The default width inside a feed-forward layer.
fn inner_of(width: usize) -> usize {
    width.saturating_mul(4)
}

/// Sizes of a DeBERTa that follow from its others.
const FOLLOWS: [&str; 2] = ["attention_head_size", "pooler_hidden_size"];

impl Family for BertConfig {
    type Shape = BertShape;

    const CHANGEABLE: &'static [&'static str] = &["dropout"];

    fn check_shape(shape: &BertShape) -> Result<(), SettingError> {
        let BertShape { layers, heads, width, inner, dropout } = *shape;
        Transformer { layers, heads, width, inner, default_inner: inner_of(width), dropout }.check()
    }

    fn fresh(shape: &BertShape, Sizes { vocabulary, positions, special }: Sizes<'_>) -> Self {
        let mut rest = ids(special);
        rest.remove("pad_token_id");
        Self {
            vocab_size: vocabulary,
            max_position_embeddings: positions,
            hidden_size: shape.width,
            intermediate_size: shape.inner.unwrap_or(inner_of(shape.width)),
            num_hidden_layers: shape.layers,
            num_attention_heads: shape.heads,
            hidden_dropout_prob: shape.dropout,
            attention_probs_dropout_prob: shape.dropout,
            pad_token_id: special.pad.map(|id| id as usize),
            rest,
            ..Self::default()
        }
    }

    fn layers(&self) -> usize {
        self.num_hidden_layers
    }

    fn with_layers(self, num_hidden_layers: usize) -> Self {
        Self { num_hidden_layers, ..self }
    }

    fn smallest(mut self) -> Self {
        self.rest.retain(|name, _| !FOLLOWS.contains(&&**name));
        // Embeddings of another size stay so, because only they are projected.
        let differs = self.embedding_width() != self.hidden_size;
        let embedding_size = self.embedding_size.map(|_| if differs { 2 } else { 1 });
        let sizes =
            Self { vocab_size: 1, hidden_size: 1, intermediate_size: 1, num_attention_heads: 1, ..self };
        Self { embedding_size, ..sizes }
    }

    fn narrowed(&self, to: Narrowing) -> Option<Self> {
        let heads = self.num_attention_heads;
        let ([num_attention_heads, _], _) = to.heads([heads; 2], self.hidden_size / heads)?;
        let embedding_size = self.embedding_size.map(|size| to.width(size).ok_or(())).transpose().ok()?;
        let mut narrowed = Self {
            embedding_size,
            hidden_size: to.width(self.hidden_size)?,
            num_attention_heads,
            intermediate_size: to.width(self.intermediate_size)?,
            ..self.clone()
        };
        narrowed.rest.retain(|name, _| !FOLLOWS.contains(&&**name));
        Some(narrowed)
    }

    fn attention(&self) -> Vec<Attention> {
        // A product with the distances to twice as many positions costs what the two products of a layer without them do.
        let deberta = self.deberta().ok().flatten().filter(|deberta| deberta.relative.is_some());
        let products = deberta.map_or(1, |deberta| deberta.products);
        Attention::of_itself(self.num_hidden_layers * products, self.hidden_size)
    }

    fn vocabulary(&self) -> usize {
        self.vocab_size
    }

    fn with_vocabulary(self, vocab_size: usize) -> Self {
        Self { vocab_size, ..self }
    }

    fn positions(&self) -> Option<usize> {
        let is_absolute = self.deberta().ok().flatten().is_none_or(|deberta| deberta.is_absolute);
        is_absolute.then(|| self.max_length())
    }

    fn reads_segments(&self) -> bool {
        true
    }

    fn label_names(&self) -> Option<Vec<String>> {
        Some(BertConfig::label_names(self))
    }

    fn labelled(mut self, kind: Option<LabelKind>, labels: Option<&Labels>) -> Self {
        self.classes = self.classes.labelled(kind, labels);
        self
    }
}
