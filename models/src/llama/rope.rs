//! Rotary position embedding.

use std::f64::consts::TAU;

use burn::tensor::{Device, FloatDType, Int, Tensor};
use firebrick_kernels::cast;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::pretrained::PretrainedError;

/// Rotates pairs of a head's numbers by angles proportional to the position (Su et al., 2021, arXiv:2104.09864). As
/// in Hugging Face's layout, a pair is a number in the head's first half and the number at the same place in its
/// second half.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rope {
    /// Radians per position for each pair.
    frequencies: Vec<f32>,
}

/// What a configuration says of the frequencies.
pub(super) struct RopeSettings<'a> {
    pub parameters: Option<&'a Map<String, Value>>,
    pub scaling: Option<&'a Map<String, Value>>,
    pub theta: Option<f64>,
    pub head_size: usize,
}

/// How to derive the frequencies for longer contexts from those of the original training.
#[derive(Deserialize)]
#[serde(tag = "rope_type", rename_all = "snake_case")]
enum Scaling {
    Default,
    Linear { factor: f64 },
    Llama3 { factor: f64, low_freq_factor: f64, high_freq_factor: f64, original_max_position_embeddings: f64 },
}

impl Rope {
    /// # Errors
    ///
    /// The scaling is not supported, or lacks a number.
    pub fn new(settings: RopeSettings<'_>) -> Result<Self, PretrainedError> {
        let (field, given) = match (settings.parameters, settings.scaling) {
            (Some(fields), _) => ("rope_parameters", fields.clone()),
            (None, Some(fields)) => ("rope_scaling", fields.clone()),
            (None, None) => ("rope_scaling", Map::new()),
        };
        let base = given.get("rope_theta").and_then(Value::as_f64).or(settings.theta).unwrap_or(10_000.0);
        let scaling = scaling(given.clone()).map_err(|error| {
            let expected = "one of default, linear and llama3, with its numbers";
            PretrainedError::setting(field, expected, format!("{} ({error})", Value::Object(given)))
        })?;
        let size = settings.head_size;
        let frequency = |pair: usize| base.powf(-((2 * pair) as f64) / size as f64);
        let frequencies: Vec<_> = (0..size / 2).map(|pair| scaling.of(frequency(pair)) as f32).collect();
        match frequencies.iter().all(|frequency| frequency.is_finite()) {
            true => Ok(Self { frequencies }),
            false => Err(PretrainedError::setting(field, "numbers above 0", base)),
        }
    }

    /// The cosines and sines of the angles at the positions `places`, `[rows, length]`; each is
    /// `[rows, 1, length, size / 2]`, f32.
    pub fn angles(&self, places: Tensor<2, Int>, device: &Device) -> (Tensor<4>, Tensor<4>) {
        let frequencies = Tensor::<1>::from_data(self.frequencies.as_slice(), device);
        let places = cast(places.float(), FloatDType::F32).unsqueeze_dim::<3>(1).unsqueeze_dim::<4>(3);
        let angles = places * frequencies.unsqueeze::<4>();
        (angles.clone().cos(), angles.sin())
    }
}

/// Early files call the type `type`, and omit it if there is no scaling.
fn scaling(mut fields: Map<String, Value>) -> serde_json::Result<Scaling> {
    let name = fields.remove("type");
    fields.entry("rope_type").or_insert_with(|| name.unwrap_or_else(|| "default".into()));
    serde_json::from_value(Value::Object(fields))
}

impl Scaling {
    fn of(&self, frequency: f64) -> f64 {
        match *self {
            Self::Default => frequency,
            Self::Linear { factor } => frequency / factor,
            // Long waves are scaled as if positions were closer, short waves are unchanged, and waves in between get
            // a mixture.
            Self::Llama3 {
                factor,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position_embeddings: context,
            } => {
                let waves = context * frequency / TAU;
                let kept = ((waves - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 - kept) * frequency / factor + kept * frequency
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use firebrick_kernels::rotary;

    use super::*;
    use crate::LlamaConfig;

    fn rope(fields: &str) -> Result<Rope, PretrainedError> {
        let config: LlamaConfig = serde_json::from_str(fields).unwrap();
        LlamaConfig { hidden_size: 8, num_attention_heads: 2, ..config }.rope()
    }

    #[test]
    fn old_and_new_spellings_mean_the_same() {
        let new = r#"{"rope_parameters": {"rope_type": "linear", "factor": 4, "rope_theta": 100.0}}"#;
        let old = r#"{"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_theta": 100}"#;
        assert_eq!(rope(new).unwrap(), rope(old).unwrap());
        assert_eq!(rope(new).unwrap().frequencies, [0.25, 0.025]);
        assert_eq!(rope("{}").unwrap().frequencies, [1.0, 0.01]);
        assert_eq!(rope(r#"{"rope_scaling": null}"#).unwrap(), rope("{}").unwrap());
    }

    #[test]
    fn unsupported_settings_are_named() {
        for (fields, named) in [
            (r#"{"rope_scaling": {"rope_type": "yarn", "factor": 4}}"#, "yarn"),
            (r#"{"rope_scaling": {"rope_type": "linear"}}"#, "factor"),
            (r#"{"rope_parameters": {"rope_type": "linear", "factor": 0.0}}"#, "above 0"),
        ] {
            let error = rope(fields).unwrap_err().to_string();
            assert!(error.contains("`rope_") && error.contains(named), "{error}");
        }
    }

    #[test]
    fn a_product_of_rotated_vectors_depends_on_their_distance() {
        let device = crate::testing::device();
        let rope = rope("{}").unwrap();
        let x = Tensor::<4>::from_data([[[[0.3, -1.0, 0.7, 2.0]]]], &device);
        let at = |place: i32| {
            let places = Tensor::<2, Int>::from_data([[place]], &device);
            let (cos, sin) = rope.angles(places, &device);
            rotary(x.clone(), cos, sin)
        };
        let product = |a, b| (at(a) * at(b)).sum().into_scalar::<f32>();
        assert!((product(0, 3) - product(5, 8)).abs() < 1e-5);
        assert!((product(0, 3) - product(0, 4)).abs() > 0.1);
    }
}
