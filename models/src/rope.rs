//! Rotary position embedding.

use std::f64::consts::TAU;

use burn::tensor::{Device, FloatDType, Int, Tensor};
use firebrick_kernels::{cast, rotary};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::pretrained::PretrainedError;

/// Rotates pairs of a head's numbers by angles proportional to the position (Su et al., 2021, arXiv:2104.09864). As
/// in Hugging Face's layout, a pair is a number in the head's first half and the number at the same place in its
/// second half. In some models, the last numbers of a head are not rotated.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rope {
    /// Radians per position for each pair.
    frequencies: Vec<f32>,
    /// The factor of rotated numbers; 1 without `longrope`.
    factor: f64,
    /// The number of positions for which the frequencies hold, if there is a limit.
    positions: Option<usize>,
}

/// The cosines and sines of the angles of some positions, each `[rows, 1, length, pairs]`, f32.
pub(super) type Angles = (Tensor<4>, Tensor<4>);

/// What a configuration says of the frequencies.
#[derive(Clone, Copy)]
pub(super) struct RopeSettings<'a> {
    /// `rope_parameters`.
    pub parameters: Option<&'a Map<String, Value>>,
    /// `rope_scaling`.
    pub scaling: Option<&'a Map<String, Value>>,
    /// The base, unless `rope_parameters` holds one.
    pub theta: f64,
    /// How many of a head's numbers are rotated; an even number.
    pub size: usize,
    /// `max_position_embeddings`.
    pub positions: usize,
    /// `original_max_position_embeddings`, unless the scaling holds it.
    pub original_positions: Option<usize>,
}

/// How to derive the frequencies for longer contexts from those of the original training.
#[derive(Deserialize)]
#[serde(tag = "rope_type", rename_all = "snake_case")]
enum Scaling {
    Default,
    Linear {
        factor: f64,
    },
    Llama3 {
        factor: f64,
        low_freq_factor: f64,
        high_freq_factor: f64,
        original_max_position_embeddings: f64,
    },
    /// Phi-3 calls it `su` in early files.
    #[serde(alias = "su")]
    Longrope {
        short_factor: Vec<f64>,
        factor: Option<f64>,
        attention_factor: Option<f64>,
        original_max_position_embeddings: Option<usize>,
    },
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
        let base = given.get("rope_theta").and_then(Value::as_f64).unwrap_or(settings.theta);
        let wrong = |expected: &str, found: String| Err(PretrainedError::setting(field, expected, found));
        let scaling = match scaling(given.clone()) {
            Ok(scaling) => scaling,
            Err(error) => {
                let expected = "one of default, linear, llama3 and longrope, with its numbers";
                return wrong(expected, format!("{} ({error})", Value::Object(given)));
            }
        };
        let size = settings.size;
        let plain = (0..size / 2).map(|pair| base.powf(-((2 * pair) as f64) / size as f64));
        let (frequencies, factor, positions) = match scaling {
            Scaling::Longrope {
                short_factor,
                factor,
                attention_factor,
                original_max_position_embeddings,
            } => {
                if short_factor.len() != size / 2 {
                    let expected = format!("a `short_factor` of {} numbers", size / 2);
                    return wrong(&expected, format!("one of {}", short_factor.len()));
                }
                let original = original_max_position_embeddings.or(settings.original_positions);
                let original = original.unwrap_or(settings.positions);
                let longer = factor.unwrap_or(settings.positions as f64 / original as f64);
                let inferred =
                    if longer <= 1.0 { 1.0 } else { (1.0 + longer.ln() / (original as f64).ln()).sqrt() };
                let frequencies: Vec<f64> = plain.zip(short_factor).map(|(plain, by)| plain / by).collect();
                (frequencies, attention_factor.unwrap_or(inferred), Some(original))
            }
            scaling => (plain.map(|plain| scaling.of(plain)).collect(), 1.0, None),
        };
        let frequencies: Vec<f32> = frequencies.into_iter().map(|frequency| frequency as f32).collect();
        if positions == Some(0)
            || !(factor.is_finite() && frequencies.iter().all(|frequency| frequency.is_finite()))
        {
            return wrong("numbers above 0", Value::Object(given).to_string());
        }
        Ok(Self { frequencies, factor, positions })
    }

    /// The number of positions for which the frequencies hold, if there is a limit: with `longrope`, the context of the
    /// original training. Beyond it, transformers takes other frequencies for all tokens of a batch, also for those in
    /// shorter rows and before the limit, so results would depend on the other rows of a batch.
    pub fn positions(&self) -> Option<usize> {
        self.positions
    }

    /// The cosines and sines of the angles at the positions `places`, `[rows, length]`.
    pub fn angles(&self, places: Tensor<2, Int>, device: &Device) -> Angles {
        let frequencies = Tensor::<1>::from_data(self.frequencies.as_slice(), device);
        let places = cast(places.float(), FloatDType::F32).unsqueeze_dim::<3>(1).unsqueeze_dim::<4>(3);
        let angles = places * frequencies.unsqueeze::<4>();
        match self.factor {
            1.0 => (angles.clone().cos(), angles.sin()),
            factor => (angles.clone().cos() * factor, angles.sin() * factor),
        }
    }
}

/// Rotates the first numbers of each head of `x`, `[batch, heads, length, size]`, as many as there are angles.
pub(super) fn rotated(x: Tensor<4>, (cos, sin): Angles) -> Tensor<4> {
    let ([.., size], [.., pairs]) = (x.dims(), cos.dims());
    if 2 * pairs == size {
        return rotary(x, cos, sin);
    }
    let turned = rotary(x.clone().narrow(3, 0, 2 * pairs), cos, sin);
    Tensor::cat(vec![turned, x.narrow(3, 2 * pairs, size - 2 * pairs)], 3)
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
            Self::Default | Self::Longrope { .. } => frequency,
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
    use super::*;

    fn rope(fields: &str) -> Result<Rope, PretrainedError> {
        let fields: Value = serde_json::from_str(fields).unwrap();
        let of = |name: &str| fields.get(name).and_then(Value::as_object);
        Rope::new(RopeSettings {
            parameters: of("rope_parameters"),
            scaling: of("rope_scaling"),
            theta: fields.get("rope_theta").and_then(Value::as_f64).unwrap_or(10_000.0),
            size: 4,
            positions: 64,
            original_positions: None,
        })
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
            (r#"{"rope_scaling": {"rope_type": "longrope", "long_factor": [1, 1]}}"#, "short_factor"),
            (r#"{"rope_scaling": {"rope_type": "longrope", "short_factor": [1]}}"#, "of 2 numbers"),
            (
                r#"{"rope_scaling": {"rope_type": "longrope", "short_factor": [1, 2],
                    "original_max_position_embeddings": 0}}"#,
                "above 0",
            ),
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
            rotated(x.clone(), rope.angles(places, &device))
        };
        let product = |a, b| (at(a) * at(b)).sum().into_scalar::<f32>();
        assert!((product(0, 3) - product(5, 8)).abs() < 1e-5);
        assert!((product(0, 3) - product(0, 4)).abs() > 0.1);
    }

    #[test]
    fn longrope_holds_for_the_original_context() {
        let scaling = r#""rope_type": "longrope", "short_factor": [2, 4]"#;
        let all = rope(&format!(r#"{{"rope_scaling": {{{scaling}}}}}"#)).unwrap();
        assert_eq!((all.frequencies, all.factor, all.positions), (vec![0.5, 0.0025], 1.0, Some(64)));
        let longer = format!(r#"{{"rope_scaling": {{{scaling}, "original_max_position_embeddings": 16}}}}"#);
        let longer = rope(&longer).unwrap();
        // √(1 + ln 4 / ln 16)
        assert!((longer.factor - 1.5f64.sqrt()).abs() < 1e-12);
        assert_eq!(longer.positions(), Some(16));
    }

    #[test]
    fn the_rest_of_a_head_stays() {
        let device = crate::testing::device();
        let x = Tensor::<4>::from_data([[[[0.3, -1.0, 0.7, 2.0, 5.0, -6.0]]]], &device);
        let places = Tensor::<2, Int>::from_data([[3]], &device);
        let angles = rope("{}").unwrap().angles(places, &device);
        let values = |x: Tensor<4>| x.into_data().iter::<f32>().collect::<Vec<_>>();
        let found = values(rotated(x.clone(), angles.clone()));
        assert_eq!(found[..4], values(rotated(x.narrow(3, 0, 4), angles)));
        assert_eq!(found[4..], [5.0, -6.0]);
    }
}
