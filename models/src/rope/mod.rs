//! Rotary position embedding.
//!
//! ```text
//! mod.rs      Rope: the rotation by positions
//! fields.rs   the fields of config.json under one of their spellings
//! scaling.rs  the frequencies that they mean
//! ```

mod fields;
mod scaling;

use burn::tensor::{Device, FloatDType, Int, Tensor};
use firebrick_kernels::{cast, rotary};

use crate::pretrained::PretrainedError;
use fields::RopeFields;
use scaling::Frequencies;

pub(super) use fields::{Base, RopeSettings};

/// Rotates pairs of a head's numbers by angles proportional to the position (Su et al., 2021, arXiv:2104.09864). As
/// in Hugging Face's layout, a pair is a number in the head's first half and the number at the same place in its
/// second half. In some models, the last numbers of a head are not rotated.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rope {
    /// Radians per position for each pair.
    frequencies: Vec<f32>,
    /// The factor of rotated numbers; 1 except with `longrope` and `yarn`.
    factor: f64,
    /// The number of positions for which the frequencies hold, if there is a limit.
    positions: Option<usize>,
}

/// The cosines and sines of the angles of some positions, each `[rows, 1, length, pairs]`, f32.
pub(super) type Angles = (Tensor<4>, Tensor<4>);

impl Rope {
    /// # Errors
    ///
    /// The fields contradict each other, the scaling is not supported, or a number is missing or out of range.
    pub fn new(settings: RopeSettings<'_>) -> Result<Self, PretrainedError> {
        let fields = RopeFields::of(&settings)?;
        let Frequencies { frequencies, factor, positions } = fields.frequencies()?;
        let frequencies: Vec<f32> = frequencies.into_iter().map(|frequency| frequency as f32).collect();
        let holds = |number: f64| number.is_finite() && number > 0.0;
        if positions == Some(0)
            || !(holds(factor) && frequencies.iter().all(|frequency| holds(f64::from(*frequency))))
        {
            return Err(fields.wrong("numbers above 0"));
        }
        Ok(Self { frequencies, factor, positions })
    }

    /// The frequencies, and the factor of rotated numbers.
    #[cfg(test)]
    pub fn numbers(&self) -> (&[f32], f64) {
        (&self.frequencies, self.factor)
    }

    /// The number of positions for which the frequencies hold, if there is a limit: with `longrope`, the context of the
    /// original training, and with `dynamic`, `max_position_embeddings`. Beyond it, transformers takes other frequencies
    /// for all tokens of a batch, also for those in shorter rows and before the limit, so results would depend on the
    /// other rows of a batch.
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

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn rope(fields: &str) -> Result<Rope, PretrainedError> {
        let fields: Value = serde_json::from_str(fields).unwrap();
        let of = |name: &str| fields.get(name).and_then(Value::as_object);
        let number = |name: &str| fields.get(name).and_then(Value::as_f64);
        Rope::new(RopeSettings {
            parameters: of("rope_parameters"),
            scaling: of("rope_scaling"),
            base: Base { field: "rope_theta", value: number("rope_theta"), default: 10_000.0 },
            head_size: 4,
            share: number("partial_rotary_factor"),
            positions: 64,
            original_positions: number("original_max_position_embeddings").map(|number| number as usize),
            by_blocks: fields["by_blocks"] == true,
            is_phi: fields["is_phi"] == true,
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
            (r#"{"rope_scaling": {"rope_type": "proportional", "factor": 4}}"#, "proportional"),
            (r#"{"rope_scaling": {"rope_type": "linear"}}"#, "factor"),
            (r#"{"rope_parameters": {"rope_type": "linear", "factor": 0.0}}"#, "above 0"),
            (r#"{"rope_scaling": {"rope_type": "longrope", "long_factor": [1, 1]}}"#, "short_factor"),
            (r#"{"rope_scaling": {"rope_type": "longrope", "short_factor": [1]}}"#, "of 2 numbers"),
            (
                r#"{"rope_scaling": {"rope_type": "longrope", "short_factor": [1, 2],
                    "original_max_position_embeddings": 0}}"#,
                "above 0",
            ),
            (r#"{"rope_theta": 0}"#, "above 0, found 0"),
            (r#"{"rope_parameters": {"rope_theta": -1.0}}"#, "above 0, found -1"),
            (r#"{"rope_parameters": {"rope_theta": "1e4"}}"#, "above 0, found \"1e4\""),
            (r#"{"rope_parameters": {"full_attention": {"rope_theta": 5.0}}}"#, "full_attention"),
        ] {
            let error = rope(fields).unwrap_err().to_string();
            assert!(error.contains("`rope_") && error.contains(named), "{error}");
        }
    }

    /// Where transformers 4 and 5 read different values, neither is silently dropped.
    #[test]
    fn spellings_that_contradict_each_other_are_named() {
        for (fields, field, found) in [
            (r#"{"rope_theta": 5.0, "rope_parameters": {"rope_theta": 6.0}}"#, "rope_theta", "5"),
            (r#"{"rope_theta": 5.0, "rope_scaling": {"rope_theta": 6.0}}"#, "rope_theta", "5"),
            (
                r#"{"rope_scaling": {"type": "linear", "rope_type": "dynamic", "factor": 4}}"#,
                "rope_scaling",
                "{",
            ),
            (r#"{"by_blocks": true, "rope_scaling": {"type": "linear", "factor": 4}}"#, "rope_scaling", "{"),
            (
                r#"{"original_max_position_embeddings": 32, "rope_scaling":
                    {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 16}}"#,
                "original_max_position_embeddings",
                "32",
            ),
            (
                r#"{"rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": "16"}}"#,
                "original_max_position_embeddings",
                "\"16\"",
            ),
            (r#"{"partial_rotary_factor": 0.5}"#, "partial_rotary_factor", "0.5"),
            (r#"{"rope_parameters": {"partial_rotary_factor": 0.5}}"#, "partial_rotary_factor", "0.5"),
            (
                r#"{"is_phi": true, "rope_scaling": {"rope_type": "linear", "factor": 4}}"#,
                "rope_scaling",
                "{",
            ),
        ] {
            let error = rope(fields).unwrap_err().to_string();
            assert!(
                error.contains(&format!("`{field}`: expected")) && error.contains(&format!("found {found}")),
                "{error}"
            );
        }
        for equal in [
            r#"{"rope_theta": 5, "rope_parameters": {"rope_theta": 5.0}}"#,
            r#"{"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 4}}"#,
            r#"{"by_blocks": true, "rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 4}}"#,
            r#"{"partial_rotary_factor": 1.0, "rope_parameters": {"partial_rotary_factor": 1}}"#,
        ] {
            rope(equal).unwrap();
        }
    }

    /// Beyond these positions, transformers changes the frequencies with the longest row of a batch.
    #[test]
    fn dynamic_scaling_holds_for_the_positions_of_the_training() {
        let dynamic = rope(r#"{"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}"#).unwrap();
        assert_eq!((dynamic.positions(), dynamic.frequencies), (Some(64), vec![1.0, 0.01]));
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
