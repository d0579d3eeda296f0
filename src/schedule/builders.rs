//! Constructors and builder methods of schedules.

use super::{LrRangeTest, OneCycle, Schedule, Warmup, WarmupCosineLr, WarmupDecayLr, WarmupLr, Wsd};

impl Schedule {
    /// Creates a schedule with the same rate for all updates.
    pub fn constant(lr: f64) -> Self {
        Self::Constant { lr, warmup: Warmup::default(), from_zero: false }
    }

    /// Creates a schedule that falls linearly from `lr` to 0.
    pub fn linear(lr: f64) -> Self {
        Self::Linear { lr, min_lr: 0.0, warmup: Warmup::default(), from_zero: false }
    }

    /// Creates a schedule that falls from `lr` to 0 along half a cosine wave.
    pub fn cosine(lr: f64) -> Self {
        Self::Cosine { lr, min_lr: 0.0, warmup: Warmup::default(), from_zero: false }
    }

    /// Creates a schedule of `cycles` half cosine waves, each from `lr` to 0.
    pub fn cosine_restarts(lr: f64, cycles: u64) -> Self {
        Self::CosineRestarts { lr, min_lr: 0.0, cycles, warmup: Warmup::default(), from_zero: false }
    }

    /// Creates a schedule that falls from `lr` to 0 as a linear decay raised to `power`.
    pub fn polynomial(lr: f64, power: f64) -> Self {
        Self::Polynomial { lr, min_lr: 0.0, power, warmup: Warmup::default(), from_zero: false }
    }

    /// Creates a schedule that falls from `lr` with the inverse square root of the update.
    pub fn inverse_sqrt(lr: f64) -> Self {
        Self::InverseSqrt { lr, timescale: None, warmup: Warmup::default(), from_zero: false }
    }

    /// Creates a schedule that stays at `lr` until the last `decay` updates, which take it to 0.
    pub fn wsd(lr: f64, decay: u64) -> Self {
        Self::Wsd(Wsd::new(lr, decay))
    }

    /// Sets the final rate, which is 0 by default. Has no effect on schedules whose final rate is not `min_lr`:
    /// `Constant`, `InverseSqrt`, `WarmupLr`, `WarmupCosineLr`, `OneCycle` and `LrRangeTest`.
    pub fn min_lr(mut self, rate: f64) -> Self {
        if let Self::Linear { min_lr, .. }
        | Self::Cosine { min_lr, .. }
        | Self::CosineRestarts { min_lr, .. }
        | Self::Polynomial { min_lr, .. }
        | Self::Wsd(Wsd { min_lr, .. })
        | Self::WarmupDecayLr(WarmupDecayLr { min_lr, .. }) = &mut self
        {
            *min_lr = rate;
        }
        self
    }

    /// Sets the warmup, in which the rate rises to the highest one: a number of updates, or a [`Warmup::Ratio`] of the
    /// run. Has no effect on `OneCycle` and `LrRangeTest`, which have no warmup.
    pub fn warmup(mut self, length: impl Into<Warmup>) -> Self {
        if let Self::Constant { warmup, .. }
        | Self::Linear { warmup, .. }
        | Self::Cosine { warmup, .. }
        | Self::CosineRestarts { warmup, .. }
        | Self::Polynomial { warmup, .. }
        | Self::InverseSqrt { warmup, .. }
        | Self::Wsd(Wsd { warmup, .. })
        | Self::WarmupLr(WarmupLr { warmup, .. })
        | Self::WarmupDecayLr(WarmupDecayLr { warmup, .. })
        | Self::WarmupCosineLr(WarmupCosineLr { warmup, .. }) = &mut self
        {
            *warmup = length.into();
        }
        self
    }

    /// Starts the [`Warmup`] at 0 as in Transformers, or at the lowest rate for `Wsd`. Has no effect on DeepSpeed's
    /// schedules, whose first update is at the lowest rate anyway.
    pub fn from_zero(mut self) -> Self {
        if let Self::Constant { from_zero, .. }
        | Self::Linear { from_zero, .. }
        | Self::Cosine { from_zero, .. }
        | Self::CosineRestarts { from_zero, .. }
        | Self::Polynomial { from_zero, .. }
        | Self::InverseSqrt { from_zero, .. }
        | Self::Wsd(Wsd { from_zero, .. }) = &mut self
        {
            *from_zero = true;
        }
        self
    }

    /// Returns the highest rate, or the first rate of a range test.
    pub fn peak(&self) -> f64 {
        let (Self::Constant { lr, .. }
        | Self::Linear { lr, .. }
        | Self::Cosine { lr, .. }
        | Self::CosineRestarts { lr, .. }
        | Self::Polynomial { lr, .. }
        | Self::InverseSqrt { lr, .. }
        | Self::Wsd(Wsd { lr, .. })
        | Self::WarmupLr(WarmupLr { lr, .. })
        | Self::WarmupDecayLr(WarmupDecayLr { lr, .. })
        | Self::WarmupCosineLr(WarmupCosineLr { lr, .. })
        | Self::OneCycle(OneCycle { lr, .. })
        | Self::LrRangeTest(LrRangeTest { min_lr: lr, .. })) = *self;
        lr
    }
}
