//! Learning rates as a function of the update.

use serde::{Deserialize, Serialize};

/// The learning rate of each update: a linear warmup, then the shape of the variant.
///
/// With `w` updates of warmup, update `t` (from 0) runs at `lr · (t + 1) / (w + 1)` while `t < w`,
/// so that none is wasted at 0; then `p = (t - w) / (total - w)` goes from 0 to 1 over the rest of
/// the run. A skipped update does not advance it.
///
/// ```
/// use firebrick::Schedule;
///
/// let schedule = Schedule::cosine(1e-3).min_lr(1e-4).warmup(100);
/// assert!(schedule.rate(0, 2000) < 1.1e-5);
/// assert_eq!(schedule.rate(100, 2000), 1e-3);
/// assert_eq!(schedule.rate(2000, 2000), 1e-4);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Schedule {
    /// `lr` after the warmup.
    Constant {
        /// The rate.
        lr: f64,
        /// Updates of warmup.
        #[serde(default)]
        warmup: u64,
    },
    /// `min_lr + (lr - min_lr) · (1 - p)`.
    Linear {
        /// The highest rate.
        lr: f64,
        /// The rate at the end of the run.
        #[serde(default)]
        min_lr: f64,
        /// Updates of warmup.
        #[serde(default)]
        warmup: u64,
    },
    /// `min_lr + (lr - min_lr) · (1 + cos πp) / 2` (Loshchilov & Hutter, 2017, arXiv:1608.03983).
    Cosine {
        /// The highest rate.
        lr: f64,
        /// The rate at the end of the run.
        #[serde(default)]
        min_lr: f64,
        /// Updates of warmup.
        #[serde(default)]
        warmup: u64,
    },
}

impl Schedule {
    /// One rate for all updates.
    pub fn constant(lr: f64) -> Self {
        Self::Constant { lr, warmup: 0 }
    }

    /// A straight line from `lr` to 0.
    pub fn linear(lr: f64) -> Self {
        Self::Linear { lr, min_lr: 0.0, warmup: 0 }
    }

    /// Half a cosine wave from `lr` to 0.
    pub fn cosine(lr: f64) -> Self {
        Self::Cosine { lr, min_lr: 0.0, warmup: 0 }
    }

    /// Ends at `rate` instead of 0; a constant schedule has no end and stays as it is.
    pub fn min_lr(mut self, rate: f64) -> Self {
        if let Self::Linear { min_lr, .. } | Self::Cosine { min_lr, .. } = &mut self {
            *min_lr = rate;
        }
        self
    }

    /// Rises to the highest rate over the first `updates`.
    pub fn warmup(mut self, updates: u64) -> Self {
        let (Self::Constant { warmup, .. } | Self::Linear { warmup, .. } | Self::Cosine { warmup, .. }) =
            &mut self;
        *warmup = updates;
        self
    }

    /// Updates of warmup.
    pub fn warmup_updates(&self) -> u64 {
        let (Self::Constant { warmup, .. } | Self::Linear { warmup, .. } | Self::Cosine { warmup, .. }) =
            *self;
        warmup
    }

    /// The rate of update `update`, counted from 0, in a run of `total` updates.
    pub fn rate(&self, update: u64, total: u64) -> f64 {
        let (Self::Constant { lr, warmup }
        | Self::Linear { lr, warmup, .. }
        | Self::Cosine { lr, warmup, .. }) = *self;
        if update < warmup {
            return lr * (update as f64 + 1.0) / (warmup as f64 + 1.0);
        }
        let rest = total.saturating_sub(warmup).max(1);
        let progress = ((update - warmup) as f64 / rest as f64).min(1.0);
        match *self {
            Self::Constant { .. } => lr,
            Self::Linear { min_lr, .. } => min_lr + (lr - min_lr) * (1.0 - progress),
            Self::Cosine { min_lr, .. } => {
                let wave = (1.0 + (std::f64::consts::PI * progress).cos()) / 2.0;
                min_lr + (lr - min_lr) * wave
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_past_the_end_stays_at_the_floor() {
        for schedule in [Schedule::linear(1.0), Schedule::cosine(1.0)] {
            assert_eq!(schedule.min_lr(0.1).rate(99, 10), 0.1);
        }
    }

    #[test]
    fn a_warmup_longer_than_the_run_never_divides_by_zero() {
        let schedule = Schedule::cosine(1.0).warmup(10);
        assert!(schedule.rate(9, 5) < 1.0);
        assert_eq!(schedule.rate(10, 5), 1.0);
    }
}
