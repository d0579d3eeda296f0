//! Schedules written as Rust.

use super::{LrRangeTest, OneCycle, Schedule, Warmup, WarmupCosineLr, WarmupDecayLr, WarmupLr, Wsd};

impl Schedule {
    /// One rate for all updates.
    pub fn constant(lr: f64) -> Self {
        Self::Constant { lr, warmup: Warmup::default(), from_zero: false }
    }

    /// A straight line from `lr` to 0.
    pub fn linear(lr: f64) -> Self {
        Self::Linear { lr, min_lr: 0.0, warmup: Warmup::default(), from_zero: false }
    }

    /// Half a cosine wave from `lr` to 0.
    pub fn cosine(lr: f64) -> Self {
        Self::Cosine { lr, min_lr: 0.0, warmup: Warmup::default(), from_zero: false }
    }

    /// So many half cosine waves, each from `lr` to 0.
    pub fn cosine_restarts(lr: f64, cycles: u64) -> Self {
        Self::CosineRestarts { lr, min_lr: 0.0, cycles, warmup: Warmup::default(), from_zero: false }
    }

    /// From `lr` to 0 along a line to this power.
    pub fn polynomial(lr: f64, power: f64) -> Self {
        Self::Polynomial { lr, min_lr: 0.0, power, warmup: Warmup::default(), from_zero: false }
    }

    /// From `lr` with one over the root of the update.
    pub fn inverse_sqrt(lr: f64) -> Self {
        Self::InverseSqrt { lr, timescale: None, warmup: Warmup::default(), from_zero: false }
    }

    /// At `lr` until the last `decay` updates, which take it to 0.
    pub fn wsd(lr: f64, decay: u64) -> Self {
        Self::Wsd(Wsd::new(lr, decay))
    }

    /// Ends at `rate` instead of 0. A schedule that has no end, or that is not told its lowest rate, stays as it is:
    /// those of constant rates, `InverseSqrt`, `WarmupCosineLr`, `OneCycle` and `LrRangeTest`.
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

    /// Rises to the highest rate over the first updates: so many of them, or a [`Warmup::Ratio`] of the run.
    /// `OneCycle` and `LrRangeTest` have none, and stay as they are.
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

    /// Starts the [`Warmup`] at 0, as Transformers does; `Wsd`, at its lowest rate. Those that DeepSpeed has stay as
    /// they are: there, the first update is at the lowest rate anyway.
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

    /// The highest rate, or the first of a range test.
    pub(crate) fn peak(&self) -> f64 {
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
