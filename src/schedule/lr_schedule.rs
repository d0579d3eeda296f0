//! Learning rates of any kind.

use std::sync::{Arc, Mutex, PoisonError};

use burn::lr_scheduler::LrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::{ModuleLrScheduler, ModuleLrSchedulerConfig};

use super::{Schedule, ScheduleError};

/// The learning rate of each update: a [`Schedule`], a function of the update, or one of Burn's
/// [schedulers](of_burn).
///
/// A function must return the same rate for an update each time, because a resumed run asks for it again:
///
/// ```
/// # use burn::tensor::Device;
/// # use firebrick::*;
/// # use firebrick::datasets::Windows;
/// # use firebrick::optim::AdamW;
/// # use firebrick_models::GptConfig;
/// # let data = Data::new(Windows::new((0..99).map(|i| i % 7).collect::<Vec<u32>>(), 8)?);
/// # let config = GptConfig { layers: 1, heads: 1, width: 8, dropout: 0.0, bias: true, tied: true };
/// # let model = config.init(7, 8, &Device::flex().autodiff());
/// let halved = |update: u64| 1e-3 * 0.5f64.powi((update / 100) as i32);
/// let trained = Trainer::new().steps(3).fit(model, AdamW::new().init()?, halved, data)?;
/// # assert_eq!(trained.last_step.learning_rate, 1e-3);
/// # Ok::<(), TrainError>(())
/// ```
pub trait LrSchedule: Send + Sync {
    /// Returns the rate of an update, counted from 0, in a run of `total` updates. A skipped step makes no update. The
    /// rate is finite and at least 0; any other ends the run.
    fn rate(&self, update: u64, total: u64) -> f64;

    /// Checks it for a run of `total` updates, before the run begins.
    ///
    /// # Errors
    ///
    /// A setting is out of range, or does not fit the length of the run.
    fn check(&self, total: u64) -> Result<(), ScheduleError> {
        let _ = total;
        Ok(())
    }

    /// Returns the settings, if it is made of settings. A checkpoint records them, and a resumed run compares them. The
    /// program itself must see to it that a resumed run gets the same function.
    fn settings(&self) -> Option<Schedule> {
        None
    }
}

impl LrSchedule for Schedule {
    fn rate(&self, update: u64, total: u64) -> f64 {
        Self::rate(self, update, total)
    }

    fn check(&self, total: u64) -> Result<(), ScheduleError> {
        Self::check(self, Some(total))
    }

    fn settings(&self) -> Option<Schedule> {
        Some(self.clone())
    }
}

impl<F: Fn(u64) -> f64 + Send + Sync> LrSchedule for F {
    fn rate(&self, update: u64, _: u64) -> f64 {
        self(update)
    }
}

impl LrSchedule for Arc<dyn LrSchedule> {
    fn rate(&self, update: u64, total: u64) -> f64 {
        self.as_ref().rate(update, total)
    }

    fn check(&self, total: u64) -> Result<(), ScheduleError> {
        self.as_ref().check(total)
    }

    fn settings(&self) -> Option<Schedule> {
        self.as_ref().settings()
    }
}

/// Returns the rates of one of Burn's schedulers, given as its configuration. Its first step is update 0.
///
/// Parameters with rates of their own are [`Groups`](crate::optim::Groups) of the optimizer.
///
/// # Errors
///
/// [`ScheduleError::Burn`] if Burn refuses the configuration.
///
/// ```
/// use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
/// use firebrick::schedule::{LrSchedule, of_burn};
///
/// let rates = of_burn(ExponentialLrSchedulerConfig::new(1e-2, 0.5))?;
/// assert_eq!([0, 1, 2, 1].map(|update| rates.rate(update, 10)), [1e-2, 5e-3, 2.5e-3, 5e-3]);
/// # Ok::<(), firebrick::ScheduleError>(())
/// ```
pub fn of_burn(
    scheduler: impl Into<LrSchedulerConfig>,
) -> Result<impl LrSchedule + Clone + 'static, ScheduleError> {
    let config = ModuleLrSchedulerConfig::new(scheduler.into());
    let begin = config.init().map_err(|reason| ScheduleError::Burn { reason })?;
    let steps = Arc::new(Mutex::new(Steps { scheduler: begin.clone(), made: 0, rate: 0.0 }));
    Ok(move |update: u64| {
        let mut steps = steps.lock().unwrap_or_else(PoisonError::into_inner);
        if steps.made > update + 1 {
            *steps = Steps { scheduler: begin.clone(), made: 0, rate: 0.0 };
        }
        while steps.made <= update {
            steps.rate = steps.scheduler.step().base();
            steps.made += 1;
        }
        steps.rate
    })
}

/// A scheduler after some steps, with the rate of the last.
struct Steps {
    scheduler: ModuleLrScheduler,
    made: u64,
    rate: f64,
}
