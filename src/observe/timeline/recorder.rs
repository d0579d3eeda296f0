//! Records the chosen steps, and gathers them from all ranks.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use firebrick_world::Communicator;

use super::{RankTimeline, StepTimeline};
use crate::TrainError;
use crate::gather::gather;

/// The steps to record.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder {
    steps: Vec<u64>,
    /// The step that is recorded now, and when it began, by both clocks.
    now: Option<(u64, SystemTime, Instant)>,
}

impl Recorder {
    /// Records these steps.
    pub fn of(steps: Vec<u64>) -> Self {
        Self { steps, now: None }
    }

    /// Begins to record a step, if it is one of those to record.
    pub fn begin(&mut self, step: u64, world: &Communicator) {
        if self.steps.contains(&step) {
            self.now = Some((step, SystemTime::now(), Instant::now()));
            world.timeline().begin();
        }
    }

    /// Ends the recording of a step, and gathers it from all ranks. Returns `None` if the step was not recorded.
    ///
    /// # Errors
    ///
    /// A rank is lost.
    pub fn end(&mut self, world: &Communicator) -> Result<Option<StepTimeline>, TrainError> {
        let Some((step, began, since)) = self.now.take() else { return Ok(None) };
        let seconds = since.elapsed().as_secs_f64();
        let events = world.timeline().end();
        let began = began.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let mut ranks = gather(world, "the timeline", &RankTimeline { began, seconds, events })?;
        let first = ranks.iter().map(|rank| rank.began).fold(f64::INFINITY, f64::min);
        ranks.iter_mut().for_each(|rank| rank.began -= first);
        Ok(Some(StepTimeline { step, ranks }))
    }
}

#[cfg(test)]
mod tests {
    use firebrick_world::Activity;

    use super::*;
    use crate::testing::on_ranks;

    #[test]
    fn every_rank_has_the_timeline_of_all() {
        let found = on_ranks(3, |world| {
            let mut recorder = Recorder::of(vec![2]);
            recorder.begin(1, &world);
            assert_eq!(recorder.end(&world).unwrap(), None);
            recorder.begin(2, &world);
            drop(world.timeline().span(Activity::Update, || format!("of rank {}", world.rank())));
            recorder.end(&world).unwrap().unwrap()
        });
        assert!(found.iter().all(|timeline| *timeline == found[0]));
        assert_eq!((found[0].step, found[0].ranks.len()), (2, 3));
        for (number, rank) in found[0].ranks.iter().enumerate() {
            assert_eq!(rank.events[0].name, format!("of rank {number}"));
            assert!(rank.began >= 0.0 && rank.events[0].end <= rank.seconds);
        }
        assert!(found[0].ranks.iter().any(|rank| rank.began == 0.0));
        assert!(found[0].ranks.iter().all(|rank| found[0].seconds() >= rank.began + rank.seconds));
    }
}
