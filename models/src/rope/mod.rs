//! Rotary position embedding.
//!
//! ```text
//! mod.rs      Rope: the rotation by positions
//! fields.rs   the fields of config.json under one of their spellings
//! scaling.rs  the frequencies that they mean, and those of samples that are longer than a context
//! ```

mod fields;
mod scaling;

use burn::tensor::{Device, FloatDType, Int, Tensor, TensorData};
use firebrick_kernels::{cast, rotary};

use crate::pretrained::PretrainedError;
use fields::RopeFields;
use scaling::{Frequencies, Longer};

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
    /// How the frequencies change in long samples, if they do.
    longer: Option<Longer>,
}

/// The cosines and sines of the angles of some positions, each `[rows, 1, length, pairs]`, f32.
pub(super) type Angles = (Tensor<4>, Tensor<4>);

impl Rope {
    /// # Errors
    ///
    /// The fields contradict each other, the scaling is not supported, or a number is missing or out of range.
    pub fn new(settings: RopeSettings<'_>) -> Result<Self, PretrainedError> {
        let fields = RopeFields::of(&settings)?;
        let Frequencies { frequencies, factor, longer } = fields.frequencies()?;
        let frequencies: Vec<f32> = frequencies.into_iter().map(|frequency| frequency as f32).collect();
        let holds = |number: f64| number.is_finite() && number > 0.0;
        if longer.as_ref().is_some_and(|longer| longer.context == 0)
            || !(holds(factor) && frequencies.iter().all(|frequency| holds(f64::from(*frequency))))
        {
            return Err(fields.wrong("numbers above 0"));
        }
        Ok(Self { frequencies, factor, longer })
    }

    /// The frequencies, and the factor of rotated numbers.
    #[cfg(test)]
    pub fn numbers(&self) -> (&[f32], f64) {
        (&self.frequencies, self.factor)
    }

    /// Whether the cached keys of a sample no longer hold once it grows to `tokens` tokens: with `longrope`, all tokens
    /// have other angles beyond the context of the original training. With `dynamic`, they do for each further token; as
    /// in transformers, cached keys then keep the angles that they were computed with.
    pub fn rereads_at(&self, tokens: usize) -> bool {
        self.longer.as_ref().is_some_and(|longer| longer.changes_at(tokens))
    }

    /// The cosines and sines of the angles at the positions `places`, `[rows, length]`. `sample_lengths` returns the number
    /// of tokens in the sample of each of them, or for one row if all rows are alike.
    pub fn angles(
        &self,
        places: Tensor<2, Int>,
        sample_lengths: impl FnOnce() -> Vec<u32>,
        device: &Device,
    ) -> Angles {
        let [_, length] = places.dims();
        let frequencies = self
            .in_long_samples(sample_lengths, length, device)
            .unwrap_or_else(|| Tensor::<1>::from_data(self.frequencies.as_slice(), device).unsqueeze::<4>());
        let places = cast(places.float(), FloatDType::F32).unsqueeze_dim::<3>(1).unsqueeze_dim::<4>(3);
        let angles = places * frequencies;
        match self.factor {
            1.0 => (angles.clone().cos(), angles.sin()),
            factor => (angles.clone().cos() * factor, angles.sin() * factor),
        }
    }

    /// The frequencies of each token, `[rows, 1, length, pairs]`, if they change in a sample.
    fn in_long_samples(
        &self,
        sample_lengths: impl FnOnce() -> Vec<u32>,
        length: usize,
        device: &Device,
    ) -> Option<Tensor<4>> {
        let longer = self.longer.as_ref()?;
        // All samples within the context are alike.
        let tokens: Vec<usize> =
            sample_lengths().into_iter().map(|tokens| longer.context.max(tokens as usize)).collect();
        let mut kinds = tokens.clone();
        kinds.sort_unstable();
        kinds.dedup();
        if kinds.last().is_none_or(|most| *most == longer.context) {
            return None;
        }
        let of = |tokens: &usize| longer.frequencies(&self.frequencies, *tokens);
        let table: Vec<f32> = kinds.iter().flat_map(of).collect();
        let table = TensorData::new(table, [kinds.len(), self.frequencies.len()]);
        let kind = |tokens: &usize| kinds.partition_point(|kind| kind < tokens) as i64;
        let kind: Vec<i64> = tokens.iter().map(kind).collect();
        let chosen = Tensor::<2>::from_data(table, device)
            .select(0, Tensor::<1, Int>::from_data(kind.as_slice(), device));
        Some(chosen.reshape([tokens.len() / length, 1, length, self.frequencies.len()]))
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
            (r#"{"rope_scaling": {"rope_type": "longrope", "short_factor": [1, 1]}}"#, "long_factor"),
            (
                r#"{"rope_scaling": {"rope_type": "longrope", "short_factor": [1], "long_factor": [1, 2]}}"#,
                "`short_factor` of 2 numbers",
            ),
            (
                r#"{"rope_scaling": {"rope_type": "longrope", "short_factor": [1, 2], "long_factor": [1]}}"#,
                "`long_factor` of 2 numbers",
            ),
            (
                r#"{"rope_scaling": {"rope_type": "longrope", "short_factor": [1, 2], "long_factor": [1, 0]}}"#,
                "`long_factor` of numbers above 0",
            ),
            (
                r#"{"rope_scaling": {"rope_type": "longrope", "short_factor": [1, 2], "long_factor": [1, 2],
                    "original_max_position_embeddings": 0}}"#,
                "above 0",
            ),
            (r#"{"rope_scaling": {"rope_type": "dynamic", "factor": -1.0}}"#, "a `factor` above 0"),
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

    /// A sample has the angles that it has in a batch of its own.
    #[test]
    fn the_length_of_a_sample_decides_its_angles() {
        let device = crate::testing::device();
        let scaling = r#""rope_type": "longrope", "original_max_position_embeddings": 2"#;
        let longrope = format!(
            r#"{{"rope_scaling": {{{scaling}, "short_factor": [1, 1], "long_factor": [2, 4], "attention_factor": 1}}}}"#
        );
        for (fields, frequencies) in [
            (&*longrope, [[1.0, 0.01], [0.5, 0.0025]]),
            // 4 · 80/64 - 3 = 2
            (r#"{"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}"#, [[1.0, 0.01], [1.0, 0.005]]),
        ] {
            let rope = rope(fields).unwrap();
            let sines = |places: [[i32; 2]; 2], lengths: Vec<u32>| {
                let places = Tensor::<2, Int>::from_data(places, &device);
                let (_, sines) = rope.angles(places, || lengths, &device);
                sines.into_data().iter::<f32>().collect::<Vec<_>>()
            };
            // A row of two samples, and a longer row.
            let found = sines([[0, 1], [1, 2]], vec![2, 2, 80, 80]);
            let expected = [(0.0, 0), (1.0, 0), (1.0, 1), (2.0, 1)]
                .map(|(place, kind)| frequencies[kind].map(|frequency: f32| (place * frequency).sin()));
            for (found, expected) in found.iter().zip(expected.as_flattened()) {
                assert!((found - expected).abs() < 1e-6, "{fields}: {found} {expected}");
            }
            // Of rows that are alike.
            assert_eq!(sines([[0, 1], [1, 2]], vec![80, 80])[4..], found[4..]);
        }
    }

    #[test]
    fn a_product_of_rotated_vectors_depends_on_their_distance() {
        let device = crate::testing::device();
        let rope = rope("{}").unwrap();
        let x = Tensor::<4>::from_data([[[[0.3, -1.0, 0.7, 2.0]]]], &device);
        let at = |place: i32| {
            let places = Tensor::<2, Int>::from_data([[place]], &device);
            rotated(x.clone(), rope.angles(places, Vec::new, &device))
        };
        let product = |a, b| (at(a) * at(b)).sum().into_scalar::<f32>();
        assert!((product(0, 3) - product(5, 8)).abs() < 1e-5);
        assert!((product(0, 3) - product(0, 4)).abs() > 0.1);
    }

    #[test]
    fn longrope_has_other_frequencies_beyond_the_original_context() {
        let scaling = r#""rope_type": "longrope", "short_factor": [2, 4], "long_factor": [4, 8]"#;
        let all = rope(&format!(r#"{{"rope_scaling": {{{scaling}}}}}"#)).unwrap();
        assert_eq!((all.frequencies.clone(), all.factor), (vec![0.5, 0.0025], 1.0));
        assert_eq!([64, 65].map(|tokens| all.rereads_at(tokens)), [false, true]);
        let longer = format!(r#"{{"rope_scaling": {{{scaling}, "original_max_position_embeddings": 16}}}}"#);
        let longer = rope(&longer).unwrap();
        // √(1 + ln 4 / ln 16)
        assert!((longer.factor - 1.5f64.sqrt()).abs() < 1e-12);
        assert!(longer.rereads_at(17) && !longer.rereads_at(65));
    }

    #[test]
    fn the_rest_of_a_head_stays() {
        let device = crate::testing::device();
        let x = Tensor::<4>::from_data([[[[0.3, -1.0, 0.7, 2.0, 5.0, -6.0]]]], &device);
        let places = Tensor::<2, Int>::from_data([[3]], &device);
        let angles = rope("{}").unwrap().angles(places, Vec::new, &device);
        let values = |x: Tensor<4>| x.into_data().iter::<f32>().collect::<Vec<_>>();
        let found = values(rotated(x.clone(), angles.clone()));
        assert_eq!(found[..4], values(rotated(x.narrow(3, 0, 4), angles)));
        assert_eq!(found[4..], [5.0, -6.0]);
    }
}
