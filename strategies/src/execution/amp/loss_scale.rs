//! The loss scale, which keeps small gradients representable in f16.
//!
//! Micikevicius et al., *Mixed Precision Training*, 2018 (arXiv:1710.03740), section 3.2; the rules are those of
//! torch's `GradScaler` and of DeepSpeed's `DynamicLossScaler`.

use serde::{Deserialize, Serialize};

use crate::{SettingError, Settled, SkipReason, StageState, StrategyError};

/// The initial loss scale and the rules that change it.
///
/// f16 has 5 bits of exponent: a gradient below 6e-8 becomes 0, and one above 65504 becomes infinite. The trainer
/// multiplies the loss by the scale before the backward pass, which scales every gradient, and divides the gradients by
/// it in f32, before anything sums or clips them. The reported loss and norm are unscaled.
///
/// - If a step has a gradient that is not finite (an *overflow*), it makes no update, and the scale is multiplied by
///   `backoff`, down to `minimum`. An overflow at the minimum ends the run with [`StrategyError::MinimumScale`].
/// - `interval` updates in a row without an overflow multiply the scale by `growth`, unless the result exceeds 2^126,
///   the largest scale whose inverse f32 can hold. Steps skipped for other reasons count as neither.
/// - `hysteresis`: the first `hysteresis - 1` overflows leave the scale unchanged, however far apart they are, and each
///   later one lowers it, until the scale grows: then the tolerance is restored. 1 tolerates none, as in torch. This is
///   DeepSpeed's rule without `consecutive_hysteresis`.
///
/// ```
/// use firebrick_strategies::LossScale;
///
/// let torch = LossScale::default();
/// let deepspeed = LossScale::default().interval(1000).hysteresis(2);
/// assert_eq!(torch, LossScale::dynamic(65536.0).growth(2.0).backoff(0.5).interval(2000).minimum(1.0));
/// # let _ = (deepspeed, LossScale::constant(1024.0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LossScale {
    initial: f64,
    growth: f64,
    backoff: f64,
    interval: u64,
    hysteresis: u64,
    minimum: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    constant: Option<f64>,
}

/// The largest scale whose inverse is a normal f32 number.
const LARGEST: f64 = (1u128 << 126) as f64;

impl Default for LossScale {
    /// torch's defaults: starts at 2^16, doubles after 2000 good updates, halves at each overflow, down to 1.
    fn default() -> Self {
        Self::dynamic(65536.0)
    }
}

impl LossScale {
    /// Starts at `initial` and adapts to the gradients. The other settings are those of [`default`](Self::default).
    pub fn dynamic(initial: f64) -> Self {
        Self {
            initial,
            growth: 2.0,
            backoff: 0.5,
            interval: 2000,
            hysteresis: 1,
            minimum: 1.0,
            constant: None,
        }
    }

    /// Uses a fixed scale; a step that overflows is skipped. A scale of 1 has no effect. It is the only setting.
    pub fn constant(scale: f64) -> Self {
        Self { constant: Some(scale), ..Self::default() }
    }

    /// Sets the factor by which the scale grows. Default: 2.
    pub fn growth(self, growth: f64) -> Self {
        Self { growth, ..self }
    }

    /// Sets the factor by which the scale falls. Default: 0.5.
    pub fn backoff(self, backoff: f64) -> Self {
        Self { backoff, ..self }
    }

    /// Sets the number of updates in a row without an overflow before the scale grows; DeepSpeed's `loss_scale_window`.
    /// Default: 2000.
    pub fn interval(self, updates: u64) -> Self {
        Self { interval: updates, ..self }
    }

    /// Sets the overflow, counted from the last growth, that first lowers the scale. Default: 1.
    pub fn hysteresis(self, overflows: u64) -> Self {
        Self { hysteresis: overflows, ..self }
    }

    /// Sets the smallest scale. Default: 1.
    pub fn minimum(self, minimum: f64) -> Self {
        Self { minimum, ..self }
    }

    /// Checks the ranges of the settings.
    pub(super) fn check(&self) -> Result<(), SettingError> {
        let within = |scale: f64| scale > 0.0 && scale <= LARGEST;
        if let Some(scale) = self.constant {
            let alone = *self == Self::constant(scale) || scale.is_nan();
            let expected = "the only setting of the loss scale: one that is constant never moves";
            SettingError::require(alone, "loss_scale.constant", expected, "others")?;
            return SettingError::require(
                within(scale),
                "loss_scale.constant",
                "above 0 and at most 2^126",
                scale,
            );
        }
        SettingError::require(
            within(self.initial),
            "loss_scale.initial",
            "above 0 and at most 2^126",
            self.initial,
        )?;
        SettingError::require(
            within(self.minimum),
            "loss_scale.minimum",
            "above 0 and at most 2^126",
            self.minimum,
        )?;
        let expected = "at most `loss_scale.initial`";
        SettingError::require(self.minimum <= self.initial, "loss_scale.minimum", expected, self.minimum)?;
        let grows = self.growth > 1.0 && self.growth.is_finite();
        SettingError::require(grows, "loss_scale.growth", "finite and above 1", self.growth)?;
        let falls = self.backoff > 0.0 && self.backoff < 1.0;
        SettingError::require(falls, "loss_scale.backoff", "above 0 and below 1", self.backoff)?;
        SettingError::require(self.interval > 0, "loss_scale.interval", "at least 1", 0)?;
        SettingError::require(self.hysteresis > 0, "loss_scale.hysteresis", "at least 1", 0)
    }

    /// Creates the live scale; the settings have been checked.
    pub(super) fn start(self) -> Scaler {
        let scale = self.constant.unwrap_or(self.initial);
        Scaler { recipe: self, scale, good: 0, tolerated: self.hysteresis - 1 }
    }
}

/// The live loss scale of a run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Scaler {
    recipe: LossScale,
    scale: f64,
    /// Updates since the scale last moved, or since the last overflow.
    good: u64,
    /// Overflows that will still leave the scale unchanged.
    tolerated: u64,
}

impl Scaler {
    pub fn scale(&self) -> f64 {
        self.scale
    }

    /// Returns the scale, should the step end so.
    pub fn after(&self, settled: &Settled) -> f64 {
        let mut next = self.clone();
        // If the run ends here, there is no next step.
        let _ = next.settle(settled);
        next.scale
    }

    /// Records the outcome of a step.
    pub fn settle(&mut self, settled: &Settled) -> Result<(), StrategyError> {
        match settled {
            Settled::Applied => self.applied(),
            Settled::Skipped(reason) => self.skipped(reason)?,
        }
        Ok(())
    }

    /// Records an update.
    fn applied(&mut self) {
        self.good += 1;
        if self.recipe.constant.is_some() || self.good < self.recipe.interval {
            return;
        }
        self.good = 0;
        self.tolerated = self.recipe.hysteresis - 1;
        if self.scale * self.recipe.growth <= LARGEST {
            self.scale *= self.recipe.growth;
        }
    }

    /// Records a step that made no update.
    fn skipped(&mut self, reason: &SkipReason) -> Result<(), StrategyError> {
        if self.recipe.constant.is_some() || *reason != SkipReason::NonFinite {
            return Ok(());
        }
        self.good = 0;
        if self.tolerated > 0 {
            self.tolerated -= 1;
            return Ok(());
        }
        if self.scale <= self.recipe.minimum {
            return Err(StrategyError::MinimumScale { scale: self.scale });
        }
        self.scale = (self.scale * self.recipe.backoff).max(self.recipe.minimum);
        Ok(())
    }

    pub fn save(&self, state: StageState) -> StageState {
        state
            .with("loss_scale", self.scale)
            .with("good_updates", self.good as f64)
            .with("tolerated_overflows", self.tolerated as f64)
    }

    /// Restores the saved scale. A constant scale keeps the recipe's value.
    pub fn restore(&mut self, state: &StageState) -> Result<(), StrategyError> {
        if self.recipe.constant.is_none() {
            self.scale = state.get("loss_scale")?;
            self.good = state.get("good_updates")? as u64;
            self.tolerated = (state.get("tolerated_overflows")? as u64).min(self.recipe.hysteresis - 1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SavedStates;

    const NAME: &str = "Amp";

    const OVERFLOW: SkipReason = SkipReason::NonFinite;

    /// The scale after each step: `.` an update, `x` an overflow, `0` a step without items.
    fn scales(scaler: &mut Scaler, steps: &str) -> Vec<f64> {
        let mut after = |step| {
            let settled = match step {
                '.' => Settled::Applied,
                'x' => Settled::Skipped(OVERFLOW),
                _ => Settled::Skipped(SkipReason::NoItems),
            };
            let foretold = scaler.after(&settled);
            scaler.settle(&settled).unwrap();
            assert_eq!(foretold, scaler.scale());
            scaler.scale()
        };
        steps.chars().map(&mut after).collect()
    }

    #[test]
    fn it_falls_at_each_overflow_and_grows_after_the_interval() {
        let mut scaler = LossScale::dynamic(8.0).interval(3).start();
        let found = scales(&mut scaler, "x..x......");
        assert_eq!(found, [4.0, 4.0, 4.0, 2.0, 2.0, 2.0, 4.0, 4.0, 4.0, 8.0]);
    }

    #[test]
    fn a_step_without_items_neither_moves_nor_counts() {
        let mut scaler = LossScale::dynamic(8.0).interval(2).start();
        assert_eq!(scales(&mut scaler, "0.00.0"), [8.0, 8.0, 8.0, 8.0, 16.0, 16.0]);
        let other = SkipReason::Other("a spike".into());
        assert_eq!(scaler.skipped(&other), Ok(()));
        assert_eq!(scaler.scale(), 16.0);
    }

    /// DeepSpeed's `DynamicLossScaler.update_scale`, line by line, without `consecutive_hysteresis`.
    #[test]
    fn hysteresis_is_deepspeeds() {
        for hysteresis in 1..4 {
            let (interval, mut scale, mut left) = (3i64, 4096.0, hysteresis);
            let mut last_overflow = -1;
            let mut scaler = LossScale::dynamic(scale).interval(3).hysteresis(hysteresis).start();
            let steps = "xx.x..x...x...xxx......x.x...x.........";
            let found = scales(&mut scaler, steps);
            for (iteration, (step, found)) in (0..).zip(steps.chars().zip(found)) {
                if step == 'x' {
                    match left {
                        1 => scale = f64::max(scale / 2.0, 1.0),
                        _ => left -= 1,
                    }
                    last_overflow = iteration;
                } else if (iteration - last_overflow) % interval == 0 {
                    left = hysteresis;
                    scale *= 2.0;
                }
                assert_eq!(found, scale, "step {iteration}, hysteresis {hysteresis}");
            }
        }
    }

    #[test]
    fn an_overflow_at_the_minimum_is_an_error_that_says_what_to_try() {
        let mut scaler = LossScale::dynamic(3.0).minimum(1.0).start();
        assert_eq!(scales(&mut scaler, "xx"), [1.5, 1.0]);
        let error = scaler.skipped(&OVERFLOW).unwrap_err();
        assert_eq!(error, StrategyError::MinimumScale { scale: 1.0 });
        assert!(error.to_string().contains("Amp::bf16()"), "{error}");
        let mut tolerant = LossScale::dynamic(1.0).hysteresis(2).start();
        assert_eq!(scales(&mut tolerant, "x"), [1.0]);
        assert!(tolerant.skipped(&OVERFLOW).is_err());
    }

    #[test]
    fn a_constant_scale_never_moves() {
        let mut scaler = LossScale::constant(1024.0).start();
        assert_eq!(scales(&mut scaler, "x.x.xxx."), [1024.0; 8]);
        let saved = LossScale::constant(7.0).start().save(StageState::new("Amp"));
        scaler.restore(&saved).unwrap();
        assert_eq!(scaler.scale(), 1024.0);
    }

    #[test]
    fn it_does_not_grow_beyond_what_f32_can_undo() {
        let mut scaler = LossScale::dynamic(LARGEST / 2.0).interval(1).start();
        assert_eq!(scales(&mut scaler, "..."), [LARGEST; 3]);
        assert!((1.0 / LARGEST) as f32 >= f32::MIN_POSITIVE);
    }

    #[test]
    fn a_restored_scale_goes_on_as_if_uninterrupted() {
        let recipe = LossScale::dynamic(64.0).interval(3).hysteresis(3);
        let steps = "x..x...xx.x.....x...";
        let whole = scales(&mut recipe.start(), steps);
        for cut in 0..steps.len() {
            let mut before = recipe.start();
            let mut found = scales(&mut before, &steps[..cut]);
            let mut states = SavedStates::new(vec![before.save(StageState::new(NAME))]);
            let mut after = recipe.start();
            after.restore(&states.take(NAME).unwrap()).unwrap();
            found.extend(scales(&mut after, &steps[cut..]));
            assert_eq!(found, whole, "cut at {cut}");
        }
    }

    #[test]
    fn impossible_settings_are_refused() {
        let default = LossScale::default();
        for (recipe, expected) in [
            (LossScale::dynamic(0.0), "`loss_scale.initial` must be above 0"),
            (LossScale::constant(f64::NAN), "`loss_scale.constant` must be above 0"),
            (LossScale::constant(8.0).interval(1), "`loss_scale.constant` must be the only setting"),
            (default.minimum(70000.0), "at most `loss_scale.initial`, found 70000"),
            (default.growth(1.0), "above 1, found 1"),
            (default.backoff(1.0), "below 1, found 1"),
            (default.interval(0), "at least 1, found 0"),
            (default.hysteresis(0), "at least 1, found 0"),
        ] {
            let error = recipe.check().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
