//! Rotations and windows of the blocks.

use serde_json::{Map, Value};

use super::ModernBertConfig;
use super::config::LayerType;
use crate::pretrained::PretrainedError;
use crate::rope::{Rope, RopeSettings};

/// How blocks see positions: those that attend to all tokens, and those with a window.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Places {
    /// Whether each block has the window.
    pub windowed: Vec<bool>,
    /// The most positions between two tokens of a window.
    pub distance: usize,
    /// The rotations of blocks without the window, and of those with it.
    pub ropes: [Rope; 2],
}

impl ModernBertConfig {
    /// # Errors
    ///
    /// The fields do not say what each block attends to, or a scaling is not supported.
    pub(super) fn places(&self) -> Result<Places, PretrainedError> {
        let layers = self.num_hidden_layers;
        let windowed = match &self.layer_types {
            Some(types) if types.len() != layers => {
                let expected = format!("{layers}, as `num_hidden_layers` says");
                return Err(PretrainedError::setting("layer_types", expected, types.len()));
            }
            Some(types) => types.iter().map(|kind| *kind == LayerType::SlidingAttention).collect(),
            None => match self.global_attn_every_n_layers.unwrap_or(3) {
                0 => return Err(PretrainedError::setting("global_attn_every_n_layers", "at least 1", 0)),
                every => (0..layers).map(|layer| layer % every != 0).collect(),
            },
        };
        let given = self.rope_parameters.as_ref();
        let full = given.and_then(|parameters| parameters.full_attention.as_ref());
        let sliding = given.and_then(|parameters| parameters.sliding_attention.as_ref());
        let ropes = [
            self.rope(full, self.global_rope_theta.unwrap_or(160_000.0))?,
            self.rope(sliding, self.local_rope_theta.unwrap_or(10_000.0))?,
        ];
        Ok(Places { windowed, distance: self.local_attention / 2, ropes })
    }

    /// The rotation with these parameters; `theta` is the base unless they hold one.
    fn rope(&self, parameters: Option<&Map<String, Value>>, theta: f64) -> Result<Rope, PretrainedError> {
        let mut parameters = parameters.cloned().unwrap_or_default();
        parameters.extend(self.rope_scaling.clone().unwrap_or_default());
        Rope::new(RopeSettings {
            parameters: Some(&parameters),
            scaling: None,
            theta,
            size: self.head_size(),
            positions: self.max_position_embeddings,
            original_positions: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(fields: &str) -> Places {
        serde_json::from_str::<ModernBertConfig>(fields).unwrap().places().unwrap()
    }

    #[test]
    fn old_and_new_spellings_mean_the_same() {
        let old = places(
            r#"{"num_hidden_layers": 4, "global_attn_every_n_layers": 2, "global_rope_theta": 500.0,
                "local_rope_theta": 100.0, "local_attention": 7}"#,
        );
        let new = places(
            r#"{"num_hidden_layers": 4, "local_attention": 6,
                "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
                "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 500},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 100}}}"#,
        );
        assert_eq!(old, new);
        assert_eq!((old.windowed, old.distance), (vec![false, true, false, true], 3));
        assert_ne!(old.ropes[0], old.ropes[1]);
        assert_eq!(places(r#"{"num_hidden_layers": 4}"#).windowed, [false, true, true, false]);
    }
}
