//! What a stage saves and restores.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

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
    values: BTreeMap<String, f64>,
}

impl StageState {
    /// The empty state of the stage of this name.
    pub fn new(stage: &str) -> Self {
        Self { stage: stage.into(), values: BTreeMap::new() }
    }

    /// Adds a value. Whole numbers are exact up to 2^53.
    pub fn with(mut self, name: &str, value: f64) -> Self {
        self.values.insert(name.into(), value);
        self
    }

    /// The name of the stage that saved it.
    pub fn stage(&self) -> &str {
        &self.stage
    }

    /// A value by its name.
    ///
    /// # Errors
    ///
    /// [`StrategyError::NoValue`] where it was not saved.
    pub fn get(&self, name: &str) -> Result<f64, StrategyError> {
        self.values
            .get(name)
            .copied()
            .ok_or_else(|| StrategyError::NoValue { stage: self.stage.clone(), value: name.into() })
    }
}

/// Saved states, taken back in the order in which the stages wrote them.
#[derive(Debug)]
pub struct SavedStates(VecDeque<StageState>);

impl SavedStates {
    /// The states that a composition saved.
    pub fn new(states: Vec<StageState>) -> Self {
        Self(states.into())
    }

    /// The states for another composition than the one that saved them. `fresh` is what that one saves
    /// when it has just started: each of its states takes the values of the first saved one of its name
    /// that is left, and the values that this one lacks stay as they are. What no state took is dropped.
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

    /// The next state, which must be of the stage of this name.
    ///
    /// # Errors
    ///
    /// [`StrategyError::OtherStage`] where it is not, or where none is left.
    pub fn take(&mut self, stage: &'static str) -> Result<StageState, StrategyError> {
        match self.0.pop_front() {
            Some(state) if state.stage == stage => Ok(state),
            other => Err(StrategyError::OtherStage {
                expected: stage,
                found: other.map_or_else(|| "nothing".into(), |state| state.stage),
            }),
        }
    }

    /// Refuses states that no stage took back.
    ///
    /// # Errors
    ///
    /// [`StrategyError::OtherStage`] naming the first of them.
    pub fn finish(mut self) -> Result<(), StrategyError> {
        match self.0.pop_front() {
            None => Ok(()),
            Some(state) => Err(StrategyError::OtherStage { expected: "nothing", found: state.stage }),
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
}
