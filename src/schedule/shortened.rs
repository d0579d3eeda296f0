//! Schedules whose phases are shortened for a run that ends before them.

use super::Warmup;

/// A setting that was shortened so that the schedule ends within the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortened {
    /// The name of the setting.
    pub setting: &'static str,
    /// Its updates before.
    pub from: u64,
    /// Its updates now.
    pub to: u64,
}

/// Shortens the warmup of this setting to a tenth of a run of `total` updates, if it does not end within the run. It has
/// `from` updates.
pub(super) fn shorten_warmup(
    setting: &'static str,
    warmup: Option<&mut Warmup>,
    from: u64,
    total: u64,
) -> Option<Shortened> {
    let warmup = warmup.filter(|_| from >= total)?;
    let to = total / 10;
    *warmup = Warmup::Updates(to);
    Some(Shortened { setting, from, to })
}

#[cfg(test)]
mod tests {
    use crate::Schedule;
    use crate::schedule::{OneCycle, Shortened, WarmupLr, Wsd};

    fn shortened(schedule: &Schedule, total: u64) -> Vec<(&'static str, u64, u64)> {
        let (schedule, changes) = schedule.shortened(total);
        assert_eq!(schedule.check(Some(total)), Ok(()), "{schedule:?}");
        changes.iter().map(|Shortened { setting, from, to }| (*setting, *from, *to)).collect()
    }

    #[test]
    fn a_warmup_that_ends_within_the_run_stays() {
        let schedule = Schedule::cosine(1.0).warmup(99);
        assert_eq!(schedule.shortened(100), (schedule.clone(), vec![]));
        assert_eq!(shortened(&schedule, 99), [("warmup", 99, 9)]);
        assert_eq!(shortened(&schedule, 3), [("warmup", 99, 0)]);
        assert_eq!(shortened(&Schedule::new("WarmupLr", WarmupLr::new(1.0)), 50), [("warmup", 1000, 5)]);
    }

    #[test]
    fn each_phase_that_is_too_long_is_shortened() {
        let wsd = |stable| Schedule::new("Wsd", Wsd { stable, ..Wsd::new(1.0, 30) }).warmup(20);
        assert_eq!(shortened(&wsd(None), 50), []);
        assert_eq!(shortened(&wsd(None), 40), [("decay", 30, 8)]);
        assert_eq!(shortened(&wsd(Some(100)), 60), [("stable", 100, 10)]);
        assert_eq!(shortened(&wsd(Some(100)), 10), [("warmup", 20, 1), ("decay", 30, 2), ("stable", 100, 7)]);
        let cycle = |second_step_size| {
            Schedule::new("OneCycle", OneCycle { second_step_size, ..OneCycle::new(0.0, 1.0) })
        };
        assert_eq!(shortened(&cycle(None), 9), [("first_step_size", 2000, 4)]);
        let both = [("first_step_size", 2000, 4), ("second_step_size", 30, 4)];
        assert_eq!(shortened(&cycle(Some(30)), 9), both);
    }
}
