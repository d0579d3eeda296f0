//! A simulated link: a bandwidth and a latency between ranks that are threads.

use std::time::Duration;

use crate::WorldError;

/// The link of each rank, simulated among ranks that are threads of one process, so that a laptop shows what a slow network
/// does to a run.
///
/// A message arrives once all that its sender has sent before, and the message itself, have passed the sender's link at its
/// bandwidth, and the latency is over. The ranks go on computing meanwhile, and the link receives while it sends. A rank
/// whose messages are on their way is not late: the [deadline](crate::World::deadline) stands still as long as a link is
/// busy. What a rank sends to itself arrives at once.
///
/// ```
/// use std::time::{Duration, Instant};
/// use firebrick_world::{Link, World};
///
/// // 100 Mbit/s, as of a slow office network.
/// let link = Link::new(12.5e6).latency(Duration::from_millis(5));
/// let ranks = World::threads(2).over_link(link).join()?;
/// let begun = Instant::now();
/// std::thread::scope(|scope| ranks.iter().for_each(|rank| drop(scope.spawn(move || rank.barrier()))));
/// assert!(begun.elapsed() >= Duration::from_millis(5));
/// # Ok::<(), firebrick_world::WorldError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    bytes_per_second: f64,
    latency: Duration,
}

/// A longer latency would be a typo.
const LONGEST: Duration = Duration::from_secs(3600);

impl Link {
    /// Creates a link of this bandwidth, in each direction, without latency.
    pub fn new(bytes_per_second: f64) -> Self {
        Self { bytes_per_second, latency: Duration::ZERO }
    }

    /// Sets how long a message takes in addition to its bytes, up to an hour. Default: 0.
    pub fn latency(self, latency: Duration) -> Self {
        Self { latency: latency.min(LONGEST), ..self }
    }

    /// Rejects a bandwidth with which no message would arrive.
    pub(crate) fn check(self) -> Result<(), WorldError> {
        match self.bytes_per_second >= 1.0 {
            true => Ok(()),
            false => Err(WorldError::Link(self.bytes_per_second.to_string())),
        }
    }

    /// Returns how long a message occupies the link.
    pub(crate) fn occupied(self, bytes: usize) -> Duration {
        Duration::try_from_secs_f64(bytes as f64 / self.bytes_per_second).unwrap_or_default()
    }

    /// Returns how long a message travels once it has left the link.
    pub(crate) fn travels(self) -> Duration {
        self.latency
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use burn::tensor::{DType, Tensor};

    use super::*;
    use crate::testing::{device, run};
    use crate::{Activity, Communicator, PartShape, World};

    /// Sums 3 MB between two ranks in two sums that are in flight together, at 10 MB/s: each rank sends half of it.
    /// Returns the seconds since `begun` when both had begun, and when both had ended.
    fn two_sums(rank: &Communicator, begun: Instant) -> Result<(f64, f64), WorldError> {
        let elements = 375_000;
        let like = [PartShape::flat(elements, DType::F32)];
        let begin = |name: &str| {
            let part = vec![Some(Tensor::<1>::ones([elements], &device()))];
            rank.begin_reduce_scatter(name, part, &like, &device())
        };
        let under_way = [begin("first")?, begin("second")?];
        let returned = begun.elapsed().as_secs_f64();
        for sum in under_way {
            let sum = sum.wait()?.remove(0).expect("both ranks have the part");
            assert_eq!(sum.narrow(0, 0, 1).into_scalar::<f32>(), 2.0);
        }
        Ok((returned, begun.elapsed().as_secs_f64()))
    }

    /// The delays are lower bounds, so that a slow machine passes.
    #[test]
    fn the_messages_of_a_rank_share_its_link_and_the_rank_goes_on() {
        // Before any rank sends, since a rank that begins late finds messages on their way.
        let (world, begun) = (World::threads(2).over_link(Link::new(10e6)), Instant::now());
        let found = run(world, move |rank| {
            rank.timeline().begin();
            let seconds = two_sums(&rank, begun)?;
            Ok((seconds, rank.timeline().end()))
        });
        for found in found {
            let ((returned, all), events) = found.unwrap();
            assert!(all >= 0.15, "{all}");
            assert!(returned < all, "begun after {returned} of {all} seconds");
            let sums: Vec<_> =
                events.iter().filter(|event| matches!(event.activity, Activity::Exchange(_))).collect();
            assert_eq!(sums.len(), 2);
            assert!(sums.iter().all(|sum| sum.bytes == 750_000));
            assert!(sums[1].end - sums[0].end > 0.07 || sums[0].end - sums[1].end > 0.07, "{sums:?}");
        }
    }

    /// The message takes twice the deadline. The other rank, which has sent it, waits at the barrier meanwhile.
    #[test]
    fn a_message_on_its_way_is_not_a_missing_rank() {
        let world = World::threads(2).over_link(Link::new(1e6)).deadline(Duration::from_millis(250));
        let found = run(world, |rank| {
            let _ = rank.broadcast(Tensor::<1>::ones([125_000], &device()), 0)?;
            rank.barrier()
        });
        assert!(found.iter().all(Result::is_ok), "{found:?}");
        // A rank that sends nothing is missing.
        let world = World::threads(2).over_link(Link::new(10e6)).deadline(Duration::from_millis(10));
        let found = run(world, |rank| match rank.rank() {
            0 => rank.barrier(),
            _ => {
                while rank.failure().is_none() {
                    std::thread::yield_now();
                }
                Ok(())
            }
        });
        assert!(matches!(&found[0], Err(WorldError::Deadline { ranks, .. }) if *ranks == [1]));
    }

    #[test]
    fn a_link_that_carries_nothing_is_refused() {
        for bytes_per_second in [0.0, -1.0, f64::NAN] {
            let error = World::threads(2).over_link(Link::new(bytes_per_second)).join().unwrap_err();
            assert!(error.to_string().contains("at least 1 byte per second"), "{error}");
        }
        assert!(World::threads(2).over_link(Link::new(f64::INFINITY)).join().is_ok());
    }
}
