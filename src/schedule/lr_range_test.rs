//! A test that finds the highest rate.

use serde::{Deserialize, Serialize};

use super::check::{above_zero, not_zero};
use super::{ScheduleError, ScheduleRecipe};

/// DeepSpeed's `LRRangeTest` (Smith, 2018, arXiv:1803.09820): `min_lr · (1 + step_rate · t / step_size)`, without an
/// end.
///
/// Use it for a short run before the real one: the loss over [`points`](super::Schedule::points) falls, flattens, and
/// rises once the rate is too high. With `staircase`, `floor(t / step_size)` replaces `t / step_size`.
///
/// ```
/// use firebrick::Schedule;
/// use firebrick::schedule::LrRangeTest;
///
/// let test = LrRangeTest { min_lr: 0.5, step_size: 2, ..LrRangeTest::default() };
/// let test = Schedule::new("LrRangeTest", test);
/// let points: Vec<_> = test.points(4).collect();
/// assert_eq!(points, [(0, 0.5), (1, 0.75), (2, 1.0), (3, 1.25)]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LrRangeTest {
    /// The first rate. Default: 0.001.
    #[serde(alias = "lr_range_test_min_lr")]
    pub min_lr: f64,
    /// Number of updates over which the factor grows by `step_rate`. Default: 2000.
    #[serde(alias = "lr_range_test_step_size")]
    pub step_size: u64,
    /// Growth of the factor per `step_size` updates. Default: 1.
    #[serde(alias = "lr_range_test_step_rate")]
    pub step_rate: f64,
    /// Whether the rate stays the same for `step_size` updates at a time. Default: no.
    #[serde(alias = "lr_range_test_staircase")]
    pub staircase: bool,
}

impl Default for LrRangeTest {
    /// DeepSpeed's defaults.
    fn default() -> Self {
        Self { min_lr: 1e-3, step_size: 2000, step_rate: 1.0, staircase: false }
    }
}

impl ScheduleRecipe for LrRangeTest {
    fn rate(&self, update: u64, _: u64) -> f64 {
        // Validation rejects a step size of 0 before any rate is computed.
        let size = self.step_size.max(1);
        let steps = if self.staircase { (update / size) as f64 } else { update as f64 / size as f64 };
        self.min_lr * (1.0 + self.step_rate * steps)
    }

    fn peak(&self) -> f64 {
        self.min_lr
    }

    fn rate_settings(&self) -> &'static [&'static str] {
        &["min_lr", "lr_range_test_min_lr"]
    }

    fn check_numbers(&self) -> Result<(), ScheduleError> {
        above_zero("min_lr", self.min_lr)?;
        not_zero("step_size", self.step_size)?;
        above_zero("step_rate", self.step_rate)
    }

    /// Checks that the highest rate is finite.
    fn check_length(&self, total: Option<u64>) -> Result<(), ScheduleError> {
        let expected = "so low that the rate of the last update is finite";
        match total.is_none_or(|total| self.rate(total, total).is_finite()) {
            true => Ok(()),
            false => Err(ScheduleError::Number { field: "step_rate", expected, found: self.step_rate }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_staircase_stays_for_a_step() {
        let test = LrRangeTest { min_lr: 1.0, step_size: 3, step_rate: 2.0, staircase: true };
        assert_eq!([0, 2, 3, 5, 6].map(|update| test.rate(update, 9)), [1.0, 1.0, 3.0, 3.0, 5.0]);
    }

    #[test]
    fn rates_without_a_bound_are_told() {
        let test = LrRangeTest { step_rate: 1e308, ..LrRangeTest::default() };
        assert_eq!(test.check_numbers(), Ok(()));
        assert_eq!(test.check_length(Some(2000)), Ok(()));
        let error = test.check_length(Some(1 << 40)).unwrap_err();
        assert_eq!(error.field(), "step_rate");
    }
}
