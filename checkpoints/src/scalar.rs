//! Numbers of an optimizer's state outside its tensors.

use serde::{Deserialize, Serialize};

/// A typed number, with the variants of `burn_pack::Scalar`. An example is the number of updates that a moment has
/// seen.
///
/// Two floats are equal if their bits are, so that a NaN equals itself.
///
/// ```
/// use firebrick_checkpoints::Scalar;
///
/// let text = serde_json::to_string(&Scalar::Float(0.1))?;
/// assert_eq!(text, r#"{"Float":"3fb999999999999a"}"#);
/// assert_eq!(serde_json::from_str::<Scalar>(&text)?, Scalar::Float(0.1));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum Scalar {
    /// A signed integer.
    Int(i64),
    /// An unsigned integer.
    UInt(u64),
    /// A floating-point number. Files store its bits as 16 hexadecimal digits.
    Float(#[serde(with = "bits")] f64),
    /// A boolean.
    Bool(bool),
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Int(a), Self::Int(b)) => a == b,
            (Self::UInt(a), Self::UInt(b)) => a == b,
            (Self::Float(a), Self::Float(b)) => a.to_bits() == b.to_bits(),
            (Self::Bool(a), Self::Bool(b)) => a == b,
            _ => false,
        }
    }
}

impl Eq for Scalar {}

/// Stores floats as bits: JSON has no NaN, and its readers round.
mod bits {
    use serde::{Deserialize, Deserializer, Serializer, de};

    pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{:016x}", value.to_bits()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bits = if text.len() == 16 { u64::from_str_radix(&text, 16).ok() } else { None };
        let bits = bits.ok_or_else(|| de::Error::custom("expected the 16 hexadecimal digits of a float"))?;
        Ok(f64::from_bits(bits))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn again(scalar: Scalar) -> Scalar {
        serde_json::from_str(&serde_json::to_string(&scalar).unwrap()).unwrap()
    }

    proptest! {
        #[test]
        fn scalars_round_trip(bits in any::<u64>(), truth in any::<bool>()) {
            let all =
                [Scalar::Float(f64::from_bits(bits)), Scalar::UInt(bits), Scalar::Int(bits as i64), Scalar::Bool(truth)];
            for scalar in all {
                prop_assert_eq!(again(scalar), scalar);
            }
        }
    }

    #[test]
    fn non_finite_floats_round_trip() {
        let quiet = f64::from_bits(0x7ff8_0000_0000_0001);
        for float in [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, quiet, -0.0, 5e-324] {
            assert_eq!(again(Scalar::Float(float)), Scalar::Float(float));
        }
        assert_ne!(Scalar::Float(0.0), Scalar::Float(-0.0));
        assert_ne!(Scalar::Int(1), Scalar::UInt(1));
        for text in [r#"{"Float":1.0}"#, r#"{"Float":"3ff"}"#, r#"{"UInt":-1}"#, r#"{"Bits":1}"#] {
            assert!(serde_json::from_str::<Scalar>(text).is_err(), "{text}");
        }
    }
}
