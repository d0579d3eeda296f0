//! What a stage saves and restores.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::StrategyError;

/// The saved state of one stage: its name and some numbers.
///
/// ```
/// use firebrick_strategies::{SavedStates, StageState};
///
/// let saved = vec![StageState::new("Ema").with("decay", 0.999)];
/// let mut states = SavedStates::new(saved);
/// assert_eq!(states.take("Ema")?.get("decay")?, 0.999);
/// # Ok::<(), firebrick_strategies::StrategyError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageState {
    stage: String,
    values: BTreeMap<String, SavedNumber>,
}

impl StageState {
    /// Creates the empty state of the stage with this name.
    pub fn new(stage: &str) -> Self {
        Self { stage: stage.into(), values: BTreeMap::new() }
    }

    /// Adds a value. Whole numbers are exact up to 2^53.
    pub fn with(mut self, name: &str, value: f64) -> Self {
        self.values.insert(name.into(), SavedNumber(value));
        self
    }

    /// Returns the name of the stage that saved the state.
    pub fn stage(&self) -> &str {
        &self.stage
    }

    /// Returns a value by its name.
    ///
    /// # Errors
    ///
    /// [`StrategyError::NoValue`] if the value was not saved.
    pub fn get(&self, name: &str) -> Result<f64, StrategyError> {
        self.values
            .get(name)
            .map(|number| number.0)
            .ok_or_else(|| StrategyError::NoValue { stage: self.stage.clone(), value: name.into() })
    }
}

/// Saved states, restored in the order in which the stages saved them.
#[derive(Debug)]
pub struct SavedStates(VecDeque<StageState>);

impl SavedStates {
    /// Creates the saved states of a composition.
    pub fn new(states: Vec<StageState>) -> Self {
        Self(states.into())
    }

    /// Matches the saved states to a composition other than the one that saved them.
    ///
    /// `fresh` holds the states of the new composition right after it starts. Each of them takes its values from the
    /// first unused saved state with the same name; values that the saved state lacks keep their fresh value. Unmatched
    /// saved states are dropped.
    ///
    /// ```
    /// use firebrick_strategies::{SavedStates, StageState};
    ///
    /// let saved = vec![StageState::new("Zero"), StageState::new("Ema").with("updates", 40.0)];
    /// let fresh = vec![StageState::new("Ema").with("updates", 0.0), StageState::new("Clip")];
    /// let mut states = SavedStates::matching(fresh, saved);
    /// assert_eq!(states.take("Ema")?.get("updates")?, 40.0);
    /// assert_eq!(states.take("Clip")?, StageState::new("Clip"));
    /// states.finish()?;
    /// # Ok::<(), firebrick_strategies::StrategyError>(())
    /// ```
    pub fn matching(fresh: Vec<StageState>, mut saved: Vec<StageState>) -> Self {
        let taken = fresh.into_iter().map(|mut state| {
            if let Some(place) = saved.iter().position(|saved| saved.stage == state.stage) {
                let mut values = saved.remove(place).values;
                values.retain(|name, _| state.values.contains_key(name));
                state.values.extend(values);
            }
            state
        });
        Self(taken.collect())
    }

    /// Takes the next state, which must belong to the stage with this name.
    ///
    /// # Errors
    ///
    /// [`StrategyError::OtherStage`] if it belongs to another stage, or if no state is left.
    pub fn take(&mut self, stage: &'static str) -> Result<StageState, StrategyError> {
        match self.0.pop_front() {
            Some(state) if state.stage == stage => Ok(state),
            other => Err(StrategyError::OtherStage {
                expected: stage,
                found: other.map_or_else(|| "nothing".into(), |state| state.stage),
            }),
        }
    }

    /// Checks that every state was restored.
    ///
    /// # Errors
    ///
    /// [`StrategyError::OtherStage`], which names the first remaining state.
    pub fn finish(mut self) -> Result<(), StrategyError> {
        match self.0.pop_front() {
            None => Ok(()),
            Some(state) => Err(StrategyError::OtherStage { expected: "nothing", found: state.stage }),
        }
    }
}

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
    fn another_order_is_refused_by_name() {
        let mut states = SavedStates::new(vec![StageState::new("Amp")]);
        assert_eq!(
            states.take("Clip").unwrap_err(),
            StrategyError::OtherStage { expected: "Clip", found: "Amp".into() }
        );
        assert!(states.take("Clip").unwrap_err().to_string().contains("nothing"));
    }

    #[test]
    fn a_state_left_over_is_refused() {
        assert!(SavedStates::new(vec![StageState::new("Amp")]).finish().is_err());
    }

    #[test]
    fn a_missing_value_is_named() {
        let error = StageState::new("Amp").get("scale").unwrap_err();
        assert!(error.to_string().contains("\"scale\""));
    }

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
