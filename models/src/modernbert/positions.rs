//! Rotations and windows of the blocks.

use serde_json::{Map, Value};

use super::ModernBertConfig;
use super::config::LayerType;
use crate::pretrained::PretrainedError;
use crate::rope::{Base, Rope, RopeSettings};

/// How blocks see positions: those that attend to all tokens, and those with a window.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Places {
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
    /// The fields do not say what each block attends to or contradict each other, or a scaling is not supported.
    pub(crate) fn places(&self) -> Result<Places, PretrainedError> {
        let layers = self.num_hidden_layers;
        let windowed: Vec<bool> = match &self.layer_types {
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
        let bases = [
            Base { field: "global_rope_theta", value: self.global_rope_theta, default: 160_000.0 },
            Base { field: "local_rope_theta", value: self.local_rope_theta, default: 10_000.0 },
        ];
        let ropes = [self.rope(full, bases[0])?, self.rope(sliding, bases[1])?];
        self.check_spellings(&windowed, full)?;
        Ok(Places { windowed, distance: self.local_attention / 2, ropes })
    }

    /// The rotation with these parameters; `base` is that of transformers 4.
    fn rope(&self, parameters: Option<&Map<String, Value>>, base: Base) -> Result<Rope, PretrainedError> {
        Rope::new(RopeSettings {
            parameters,
            scaling: self.rope_scaling.as_ref(),
            base,
            head_size: self.head_size(),
            share: None,
            positions: self.max_position_embeddings,
            original_positions: None,
            by_blocks: true,
            is_phi: false,
        })
    }

    /// Rejects fields that transformers 4 and 5 read differently, of which one would be dropped.
    fn check_spellings(
        &self,
        windowed: &[bool],
        full: Option<&Map<String, Value>>,
    ) -> Result<(), PretrainedError> {
        // transformers 4 does not know `layer_types`.
        if let (Some(every), Some(_)) = (self.global_attn_every_n_layers, &self.layer_types)
            && (0..).zip(windowed).any(|(layer, windowed)| *windowed != (layer % every.max(1) != 0))
        {
            let expected = "the number by which `layer_types` alternate, or none";
            return Err(PretrainedError::setting("global_attn_every_n_layers", expected, every));
        }
        // transformers 4 has it as another name of `global_rope_theta`.
        const THETA: &str = "rope_theta";
        let of_full = full.and_then(|fields| fields.get(THETA)).and_then(Value::as_f64);
        let base = of_full.or(self.global_rope_theta).unwrap_or(160_000.0);
        if let Some(found) = self.rest.get(THETA).filter(|found| found.as_f64() != Some(base)) {
            let expected = format!("{base}, as in blocks without a window");
            return Err(PretrainedError::setting(THETA, expected, found));
        }
        // transformers 5 reads parameters for each of the `layer_types` alone.
        const SHARED: [&str; 4] = [THETA, "rope_type", "type", "factor"];
        let given = self.rope_parameters.as_ref();
        if let Some(fields) = given.map(|given| &given.rest)
            && SHARED.iter().any(|name| fields.contains_key(*name))
        {
            let expected = "settings for full_attention and sliding_attention";
            return Err(PretrainedError::setting("rope_parameters", expected, Value::Object(fields.clone())));
        }
        Ok(())
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
        let both = places(
            r#"{"num_hidden_layers": 4, "global_attn_every_n_layers": 2, "local_attention": 6, "rope_theta": 500.0,
                "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"],
                "rope_parameters": {"full_attention": {"rope_theta": 500}, "sliding_attention": {"rope_theta": 100}}}"#,
        );
        assert_eq!(new, both);
    }
}
