//! ModernBERT, an encoder with rotated positions and windows.

use firebrick_datasets::collators::Labels;
use firebrick_strategies::SettingError;
use serde::{Deserialize, Serialize};
use serde_json::Map;

use super::ModernBertConfig;
use super::config::LayerType;
use crate::family::{Attention, Family, Narrowing, Sizes, Transformer, ids};
use crate::inference::LabelKind;
use crate::pretrained::MOST_SIZE;

/// The shape of a fresh [`ModernBertConfig`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModernBertShape {
    /// Transformer blocks. The first of every three attends to all tokens.
    pub layers: usize,
    /// Number of attention heads, a divisor of `width`.
    pub heads: usize,
    /// Size of the hidden state.
    pub width: usize,
    /// The width inside a feed-forward layer. Default: 1.5 times `width`, rounded up.
    #[serde(default)]
    pub inner: Option<usize>,
    /// In the other blocks, a token attends to the `window / 2` tokens on either side. Default: 128.
    #[serde(default = "usual_window")]
    pub window: usize,
    /// Dropout probability of activations and attention weights. Default: 0.
    #[serde(default)]
    pub dropout: f64,
}

fn usual_window() -> usize {
    128
}

/// The default width inside a feed-forward layer.
fn inner_of(width: usize) -> usize {
    width.saturating_mul(3).div_ceil(2)
}

impl Family for ModernBertConfig {
    type Shape = ModernBertShape;

    const CHANGEABLE: &'static [&'static str] = &["dropout"];

    fn check_shape(shape: &ModernBertShape) -> Result<(), SettingError> {
        let ModernBertShape { layers, heads, width, inner, window, dropout } = *shape;
        Transformer { layers, heads, width, inner, default_inner: inner_of(width), dropout }.check()?;
        let expected = "an even multiple of `heads`: positions turn pairs of numbers";
        SettingError::require((width / heads).is_multiple_of(2), "width", expected, width)?;
        let is_window = window >= 2 && window.is_multiple_of(2) && window <= MOST_SIZE;
        SettingError::require(is_window, "window", format!("even, from 2 to {MOST_SIZE}"), window)
    }

    fn fresh(shape: &ModernBertShape, Sizes { vocabulary, positions, special }: Sizes<'_>) -> Self {
        let mut rest = ids(special);
        // Without them, transformers assumes ids of the published models' vocabulary.
        rest.extend(
            [("cls_token_id", special.cls), ("sep_token_id", special.sep)]
                .map(|(name, id)| (name.into(), id.into())),
        );
        Self {
            vocab_size: vocabulary,
            max_position_embeddings: positions,
            hidden_size: shape.width,
            intermediate_size: shape.inner.unwrap_or(inner_of(shape.width)),
            num_hidden_layers: shape.layers,
            num_attention_heads: shape.heads,
            local_attention: shape.window,
            embedding_dropout: shape.dropout,
            attention_dropout: shape.dropout,
            mlp_dropout: shape.dropout,
            classifier_dropout: shape.dropout,
            rest,
            ..Self::default()
        }
    }

    fn layers(&self) -> usize {
        self.num_hidden_layers
    }

    fn with_layers(mut self, num_hidden_layers: usize) -> Self {
        if let Some(types) = &mut self.layer_types {
            types.resize(num_hidden_layers, LayerType::FullAttention);
            // It need no longer say the same.
            self.global_attn_every_n_layers = None;
        }
        Self { num_hidden_layers, ..self }
    }

    fn smallest(self) -> Self {
        // Rotary embeddings rotate pairs of numbers, and scalings may hold a number for each pair.
        Self {
            vocab_size: 1,
            hidden_size: 2,
            intermediate_size: 1,
            num_attention_heads: 1,
            rope_scaling: None,
            rope_parameters: None,
            // Among the others may be a further name of the base.
            rest: Map::new(),
            ..self
        }
    }

    fn narrowed(&self, to: Narrowing) -> Option<Self> {
        let heads = self.num_attention_heads;
        let ([num_attention_heads, _], _) = to.heads([heads; 2], self.hidden_size / heads)?;
        Some(Self {
            hidden_size: to.width(self.hidden_size)?,
            intermediate_size: to.width(self.intermediate_size)?,
            num_attention_heads,
            ..self.clone()
        })
    }

    fn attention(&self) -> Vec<Attention> {
        Attention::of_itself(self.num_hidden_layers, self.hidden_size)
    }

    fn vocabulary(&self) -> usize {
        self.vocab_size
    }

    fn with_vocabulary(self, vocab_size: usize) -> Self {
        Self { vocab_size, ..self }
    }

    fn positions(&self) -> Option<usize> {
        None
    }

    fn label_names(&self) -> Option<Vec<String>> {
        Some(self.classes.names())
    }

    fn labelled(mut self, kind: Option<LabelKind>, labels: Option<&Labels>) -> Self {
        self.classes = self.classes.labelled(kind, labels);
        self
    }
}

#[cfg(test)]
mod tests {
    use firebrick_datasets::SpecialTokens;

    use super::*;
    use crate::pretrained::HubConfig;

    const SHAPE: ModernBertShape =
        ModernBertShape { layers: 4, heads: 2, width: 8, inner: None, window: 6, dropout: 0.1 };

    #[test]
    fn a_fresh_configuration_says_all_ids_of_special_tokens() {
        let special = SpecialTokens { cls: Some(3), ..SpecialTokens::default() };
        let config =
            ModernBertConfig::fresh(&SHAPE, Sizes { vocabulary: 10, positions: 20, special: &special });
        let written = serde_json::to_value(config).unwrap();
        for (name, id) in [("cls_token_id", Some(3)), ("sep_token_id", None), ("bos_token_id", Some(3))] {
            assert_eq!(written.get(name), Some(&id.into()), "{name}");
        }
    }

    #[test]
    fn other_sizes_pass_the_check() {
        let special = SpecialTokens::default();
        let config =
            ModernBertConfig::fresh(&SHAPE, Sizes { vocabulary: 10, positions: 20, special: &special });
        let types = config.places().unwrap().windowed.into_iter().map(|windowed| match windowed {
            true => LayerType::SlidingAttention,
            false => LayerType::FullAttention,
        });
        let config = ModernBertConfig { layer_types: Some(types.collect()), ..config };
        for layers in [0, 1, 4, 6] {
            config.clone().with_layers(layers).check().unwrap();
            config.clone().smallest().with_layers(layers).check().unwrap();
        }
    }
}
