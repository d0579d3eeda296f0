//! Constructors and builder methods of schedules.

use super::{
    Constant, Cosine, CosineRestarts, InverseSqrt, Linear, Polynomial, Schedule, SharedSettings, Warmup, Wsd,
};

impl Schedule {
    /// Creates a schedule with the same rate for all updates.
    pub fn constant(lr: f64) -> Self {
        Self::new("Constant", Constant { lr, warmup: Warmup::default(), from_zero: false })
    }

    /// Creates a schedule that falls linearly from `lr` to 0.
    pub fn linear(lr: f64) -> Self {
        Self::new("Linear", Linear { lr, min_lr: 0.0, warmup: Warmup::default(), from_zero: false })
    }

    /// Creates a schedule that falls from `lr` to 0 along half a cosine wave.
    pub fn cosine(lr: f64) -> Self {
        Self::new("Cosine", Cosine { lr, min_lr: 0.0, warmup: Warmup::default(), from_zero: false })
    }

    /// Creates a schedule of `cycles` half cosine waves, each from `lr` to 0.
    pub fn cosine_restarts(lr: f64, cycles: u64) -> Self {
        let warmup = Warmup::default();
        Self::new("CosineRestarts", CosineRestarts { lr, min_lr: 0.0, cycles, warmup, from_zero: false })
    }

    /// Creates a schedule that falls from `lr` to 0 as a linear decay raised to `power`.
    pub fn polynomial(lr: f64, power: f64) -> Self {
        let warmup = Warmup::default();
        Self::new("Polynomial", Polynomial { lr, min_lr: 0.0, power, warmup, from_zero: false })
    }

    /// Creates a schedule that falls from `lr` with the inverse square root of the update.
    pub fn inverse_sqrt(lr: f64) -> Self {
        let warmup = Warmup::default();
        Self::new("InverseSqrt", InverseSqrt { lr, timescale: None, warmup, from_zero: false })
    }

    /// Creates a schedule that stays at `lr` until the last `decay` updates, which take it to 0.
    pub fn wsd(lr: f64, decay: u64) -> Self {
        Self::new("Wsd", Wsd::new(lr, decay))
    }

    /// Sets the final rate, which is 0 by default. Has no effect on schedules whose final rate is not `min_lr`:
    /// `Constant`, `InverseSqrt`, `WarmupLr`, `WarmupCosineLr`, `OneCycle` and `LrRangeTest`.
    pub fn min_lr(self, rate: f64) -> Self {
        self.with_shared(|shared| shared.min_lr.into_iter().for_each(|min_lr| *min_lr = rate))
    }

    /// Sets the warmup, in which the rate rises to the highest one: a number of updates, or a [`Warmup::Ratio`] of the
    /// run. Has no effect on `OneCycle` and `LrRangeTest`, which have no warmup.
    pub fn warmup(self, length: impl Into<Warmup>) -> Self {
        let length = length.into();
        self.with_shared(|shared| shared.warmup.into_iter().for_each(|warmup| *warmup = length))
    }

    /// Starts the [`Warmup`] at 0 as in Transformers, or at the lowest rate for `Wsd`. Has no effect on DeepSpeed's
    /// schedules, whose first update is at the lowest rate anyway.
    pub fn from_zero(self) -> Self {
        self.with_shared(|shared| shared.from_zero.into_iter().for_each(|from_zero| *from_zero = true))
    }

    fn with_shared(&self, mut set: impl FnMut(SharedSettings<'_>)) -> Self {
        self.0.with_shared(self.0.name(), &mut set)
    }
}
