//! A float in a saved state.

use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A float that any text format stores. JSON has no infinity and no NaN, so these are texts.
///
/// ```
/// use firebrick_strategies::SavedNumber;
///
/// let saved = serde_json::to_string(&[0.1, -0.0, f64::NEG_INFINITY].map(SavedNumber))?;
/// assert_eq!(saved, r#"[0.1,-0.0,"-inf"]"#);
/// let read: [SavedNumber; 3] = serde_json::from_str(&saved)?;
/// assert_eq!(read.map(|number| number.0), [0.1, -0.0, f64::NEG_INFINITY]);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SavedNumber(pub f64);

impl Serialize for SavedNumber {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.is_finite() {
            true => serializer.serialize_f64(self.0),
            // "inf", "-inf" or "NaN".
            false => serializer.collect_str(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for SavedNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NumberOrText).map(Self)
    }
}

struct NumberOrText;

impl Visitor<'_> for NumberOrText {
    type Value = f64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, \"inf\", \"-inf\" or \"NaN\"")
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<f64, E> {
        Ok(number)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<f64, E> {
        Ok(number as f64)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<f64, E> {
        Ok(number as f64)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<f64, E> {
        match text {
            "inf" => Ok(f64::INFINITY),
            "-inf" => Ok(f64::NEG_INFINITY),
            "NaN" => Ok(f64::NAN),
            _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_float_comes_back_to_the_bit() {
        let awkward =
            [0.1 + 0.2, -0.0, 5e-324, 1.7976931348623157e308, 9007199254740993.0, 1e300, 2.5f32.into()];
        let not_finite = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
        // Sixteen digits or more, of all magnitudes.
        let many = (0..2000u64).map(|n| f64::from_bits(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1));
        for number in awkward.into_iter().chain(not_finite).chain(many) {
            let text = serde_json::to_string(&SavedNumber(number)).unwrap();
            let SavedNumber(read) = serde_json::from_str(&text).unwrap();
            assert!(read.to_bits() == number.to_bits() || read.is_nan() && number.is_nan(), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["\"Inf\"", "\"1.5\"", "null", "[1]"] {
            let error = serde_json::from_str::<SavedNumber>(text).unwrap_err().to_string();
            assert!(error.contains("a number, \"inf\", \"-inf\" or \"NaN\""), "{error}");
        }
    }
}
