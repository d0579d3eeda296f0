//! DeepSpeed's schedules after Smith: one cycle up and down, and the test that finds its highest rate.

use serde::{Deserialize, Serialize};

use super::check::{above_zero, at_most, not_zero};
use super::{ScheduleError, ScheduleRecipe, Shortened};

/// DeepSpeed's `OneCycle` (Smith, 2018, arXiv:1803.09820): linearly up from `min_lr` to `lr` over `a` updates, linearly
/// down again over `b` updates, and then, `n` updates after the cycle,
/// `min_lr / (1 + decay_lr_rate · n / decay_step_size)`.
///
/// With `k` stairs in a half, its progress `x` from 0 to 1 becomes `floor(kx) / k`. DeepSpeed's cycling of the momentum
/// (`cycle_min_mom`, `cycle_max_mom`, `decay_mom_rate`) is not included: a schedule here sets only rates, and the
/// optimizer's momentum stays the same. To compare with DeepSpeed, set its `cycle_momentum` to false.
///
/// ```
/// use firebrick::Schedule;
/// use firebrick::schedule::OneCycle;
///
/// let cycle = OneCycle { first_step_size: 4, second_step_size: Some(2), ..OneCycle::new(0.25, 1.25) };
/// let cycle = OneCycle { decay_step_size: 1, decay_lr_rate: 0.5, ..cycle };
/// let schedule = Schedule::new("OneCycle", cycle);
/// let rates = [0, 1, 4, 5, 6, 8].map(|update| schedule.rate(update, 10));
/// assert_eq!(rates, [0.25, 0.5, 1.25, 0.75, 0.25, 0.125]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OneCycle {
    /// The rate in the middle of the cycle.
    #[serde(alias = "cycle_max_lr")]
    pub lr: f64,
    /// The rate at both ends of the cycle.
    #[serde(alias = "cycle_min_lr")]
    pub min_lr: f64,
    /// Number of updates on the way up. Default: 2000.
    #[serde(default = "two_thousand", alias = "cycle_first_step_size")]
    pub first_step_size: u64,
    /// Number of updates on the way down; 0 drops immediately. Default: `first_step_size`.
    #[serde(alias = "cycle_second_step_size")]
    pub second_step_size: Option<u64>,
    /// Number of stairs on the way up. Default: 0, a straight line.
    #[serde(default, alias = "cycle_first_stair_count")]
    pub first_stair_count: u64,
    /// Number of stairs on the way down. Default: `first_stair_count`.
    #[serde(alias = "cycle_second_stair_count")]
    pub second_stair_count: Option<u64>,
    /// Growth of the divisor per `decay_step_size` updates after the cycle. Default: 0, no decay.
    #[serde(default)]
    pub decay_lr_rate: f64,
    /// Number of updates over which the divisor grows by `decay_lr_rate`. Default: 0, no decay.
    #[serde(default)]
    pub decay_step_size: u64,
}

fn two_thousand() -> u64 {
    2000
}

impl OneCycle {
    /// Creates a schedule with DeepSpeed's defaults: 2000 updates up, as many down, and no decay.
    pub fn new(min_lr: f64, lr: f64) -> Self {
        Self {
            lr,
            min_lr,
            first_step_size: two_thousand(),
            second_step_size: None,
            first_stair_count: 0,
            second_stair_count: None,
            decay_lr_rate: 0.0,
            decay_step_size: 0,
        }
    }

    /// Returns the rate `update` updates after the cycle.
    fn after(&self, update: u64) -> f64 {
        match self.decay_step_size {
            0 => self.min_lr,
            size => self.min_lr / (1.0 + self.decay_lr_rate * (update as f64 / size as f64)),
        }
    }
}

impl ScheduleRecipe for OneCycle {
    fn rate(&self, update: u64, _: u64) -> f64 {
        let first = self.first_step_size;
        let second = self.second_step_size.unwrap_or(first);
        let cycle = first.saturating_add(second);
        if update >= cycle {
            return self.after(update - cycle);
        }
        let height = match update <= first {
            true => on_stairs(update, first, self.first_stair_count),
            false => {
                let stairs = self.second_stair_count.unwrap_or(self.first_stair_count);
                on_stairs(cycle - update, second, stairs)
            }
        };
        self.min_lr + (self.lr - self.min_lr) * height
    }

    fn peak(&self) -> f64 {
        self.lr
    }

    fn check_numbers(&self) -> Result<(), ScheduleError> {
        above_zero("lr", self.lr)?;
        at_most("min_lr", self.min_lr, "lr", self.lr)?;
        not_zero("first_step_size", self.first_step_size)?;
        let (field, found) = ("decay_lr_rate", self.decay_lr_rate);
        match found >= 0.0 && found.is_finite() {
            true => Ok(()),
            false => Err(ScheduleError::Number { field, expected: "finite and at least 0", found }),
        }
    }

    fn warmup_updates(&self, _: u64) -> u64 {
        self.first_step_size
    }

    fn warmup_setting(&self) -> &'static str {
        "first_step_size"
    }

    fn rate_settings(&self) -> &'static [&'static str] {
        &["lr", "cycle_max_lr"]
    }

    fn shorten(&mut self, total: u64) -> Vec<Shortened> {
        if self.first_step_size < total {
            return Vec::new();
        }
        let to = (total / 2).max(1);
        let mut shortened = vec![Shortened { setting: "first_step_size", from: self.first_step_size, to }];
        self.first_step_size = to;
        if let Some(from) = self.second_step_size.filter(|size| *size > to) {
            shortened.push(Shortened { setting: "second_step_size", from, to });
            self.second_step_size = Some(to);
        }
        shortened
    }
}

/// Returns the progress after `steps` of `size`, on `stairs` stairs, or on a straight line if there are none. Integer
/// arithmetic counts the stairs, because a float may be just below one.
fn on_stairs(steps: u64, size: u64, stairs: u64) -> f64 {
    match stairs {
        0 => steps as f64 / size as f64,
        _ => {
            let stair = u128::from(steps) * u128::from(stairs) / u128::from(size);
            stair as f64 / stairs as f64
        }
    }
}

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
    fn stairs_hold_the_rate_and_reach_the_highest() {
        let cycle = OneCycle {
            first_step_size: 6,
            second_step_size: Some(4),
            first_stair_count: 3,
            ..OneCycle::new(0.0, 3.0)
        };
        let rates: Vec<_> = (0..12).map(|update| cycle.rate(update, 100)).collect();
        assert_eq!(rates, [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 2.0, 1.0, 0.0, 0.0, 0.0]);
        let lines_down = OneCycle { second_stair_count: Some(0), ..cycle };
        assert_eq!([7, 8, 9].map(|update| lines_down.rate(update, 100)), [2.25, 1.5, 0.75]);
    }

    #[test]
    fn a_stair_starts_at_its_first_update() {
        // 49 times the float nearest to 1/49 is less than 1.
        let cycle = OneCycle { first_step_size: 49, first_stair_count: 49, ..OneCycle::new(0.0, 49.0) };
        for update in 0..49 {
            assert_eq!(cycle.rate(update, 100).round(), update as f64);
        }
    }

    #[test]
    fn nothing_on_the_way_down_is_straight_down() {
        let cycle = OneCycle { first_step_size: 2, second_step_size: Some(0), ..OneCycle::new(0.5, 1.0) };
        assert_eq!([0, 1, 2, 3].map(|update| cycle.rate(update, 100)), [0.5, 0.75, 0.5, 0.5]);
    }

    #[test]
    fn the_longest_cycle_is_counted() {
        let cycle = OneCycle { first_step_size: u64::MAX, ..OneCycle::new(0.0, 1.0) };
        assert_eq!(cycle.rate(u64::MAX / 2 + 1, 100), 0.5);
    }

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
