//! Runs the ranks of this process, a thread each, and selects the error to report.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use firebrick_datasets::{DataError, SampleError};
use firebrick_kernels::memory::{Account, Inherited};
use firebrick_strategies::StrategyError;
use firebrick_world::{Communicator, WorldError};

use crate::TrainError;
use crate::engine::dry_run::text_of;

/// Stack size of a program's main thread. The default of a thread is smaller, and deep models recurse.
pub const STACK_BYTES: usize = 8 << 20;

/// The longest wait for threads after a rank missed its deadline.
const GRACE: Duration = Duration::from_secs(10);

/// The result of a rank.
struct RankResult<T> {
    result: Result<T, TrainError>,
    /// Why the world failed, if it did.
    failure: Option<WorldError>,
}

/// Runs `train` for each rank of this process in its own thread, and returns the result of the first rank.
///
/// If a rank fails or panics, all others end too. The error is the first one, and names the rank. On return, all
/// threads have ended, except those of ranks that missed the deadline: a thread cannot be stopped from outside, so a
/// stuck one is left behind.
pub fn each_rank<J, T>(
    ranks: Vec<(Communicator, J)>,
    limit: Duration,
    train: impl Fn(Communicator, J) -> Result<T, TrainError> + Clone + Send + 'static,
) -> Result<T, TrainError>
where
    J: Send + 'static,
    T: Send + 'static,
{
    let numbers: Vec<usize> = ranks.iter().map(|(world, _)| world.rank()).collect();
    let size = ranks.first().map_or(0, |(world, _)| world.size());
    let (sender, results) = channel();
    let start = |(place, (world, job)): (usize, (Communicator, J))| {
        let (train, sender) = (train.clone(), sender.clone());
        spawn(place, world, sender, move |world| train(world, job))
    };
    let mut threads: Vec<_> = ranks.into_iter().enumerate().map(start).collect();
    drop(sender);
    let mut ended: Vec<Option<RankResult<T>>> = numbers.iter().map(|_| None).collect();
    let mut until = None;
    loop {
        let next = match until {
            None => results.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(until) => results.recv_timeout(until - Instant::now().min(until)),
        };
        let Ok((place, one)) = next else { break };
        // The other ranks learn of the failure in their next call. A stuck rank makes none, so it gets the deadline of
        // a call. If a call has already given it up, it gets only a little more time.
        let left = match &one.failure {
            Some(WorldError::Deadline { limit, .. }) => Some(GRACE.min(*limit)),
            Some(_) => Some(limit.saturating_add(GRACE)),
            None => None,
        };
        // A deadline beyond all time is none.
        if let Some(end) = left.and_then(|left| Instant::now().checked_add(left)) {
            until = Some(until.map_or(end, |until: Instant| until.min(end)));
        }
        ended[place] = Some(one);
        if let Some(thread) = threads[place].take() {
            // The thread catches its panics and reports them as errors.
            let _ = thread.join();
        }
    }
    let ended = numbers.into_iter().zip(ended).filter_map(|(rank, one)| Some((rank, one?))).collect();
    outcome(ended, size)
}

/// Starts a rank's thread, which sends its result.
fn spawn<T: Send + 'static>(
    place: usize,
    world: Communicator,
    sender: Sender<(usize, RankResult<T>)>,
    train: impl FnOnce(Communicator) -> Result<T, TrainError> + Send + 'static,
) -> Option<JoinHandle<()>> {
    let name = format!("rank {}", world.rank());
    let (outside, ends) = (world.clone(), sender.clone());
    let thread = Builder::new().name(name).stack_size(STACK_BYTES).spawn(move || {
        let ended = on_this_thread(world, train);
        // If the rank was given up, nobody receives the result.
        let _ = sender.send((place, ended));
    });
    thread
        .inspect_err(|error| {
            outside.fail(&error.to_string());
            let result = Err(TrainError::NoThread(error.to_string()));
            let _ = ends.send((place, RankResult { result, failure: outside.failure() }));
        })
        .ok()
}

/// Runs one rank, from its first to its last call.
fn on_this_thread<T>(
    world: Communicator,
    train: impl FnOnce(Communicator) -> Result<T, TrainError>,
) -> RankResult<T> {
    // Measures the rank's memory as if it were alone.
    let account = Account::new();
    let _on_it = account.enter();
    let of_rank = Inherited::of_this_thread();
    world.work_within(move |work| {
        let _on_it = of_rank.enter();
        work();
    });
    let inside = world.clone();
    let result = catch_unwind(AssertUnwindSafe(|| train(inside)))
        .unwrap_or_else(|panic| Err(TrainError::Panicked(text_of(&*panic).into())));
    if let Err(error) = &result
        && !error.is_agreed()
    {
        world.fail(&error.to_string());
    }
    RankResult { result, failure: world.failure() }
}

/// Returns the result of the first rank, or the first error of all.
fn outcome<T>(ended: Vec<(usize, RankResult<T>)>, size: usize) -> Result<T, TrainError> {
    let failure = ended.iter().find_map(|(_, one)| one.failure.clone());
    let (mut results, mut errors) = (Vec::new(), Vec::new());
    for (rank, one) in ended {
        match one.result {
            Ok(result) => results.push(result),
            Err(error) => errors.push((rank, error)),
        }
    }
    let is_own = |error: &TrainError| !error.is_of_world();
    // If all ranks fail with the same error, the cause is their common input, not one rank.
    let alike = errors.len() == size
        && errors.iter().all(|(_, error)| is_own(error))
        && errors.windows(2).all(|two| two[0].1.to_string() == two[1].1.to_string());
    let culprit = errors.iter().position(|(own, error)| {
        matches!(&failure, Some(WorldError::Rank { rank, .. }) if rank == own) && is_own(error)
    });
    if let (Some(place), false) = (culprit, alike) {
        let (rank, reason) = errors.swap_remove(place);
        return Err(TrainError::Rank { rank, reason: Box::new(reason) });
    }
    match (errors.into_iter().next(), results.into_iter().next()) {
        (Some((_, error)), _) => Err(error),
        (None, Some(result)) => Ok(result),
        (None, None) => Err(TrainError::NoThread("none has ended".into())),
    }
}

impl TrainError {
    /// Returns whether all ranks return this error at the same step, from numbers that they agreed on.
    pub(crate) fn is_agreed(&self) -> bool {
        matches!(
            self,
            Self::OnlySkips { .. }
                | Self::Diverged { .. }
                | Self::NotFinite { .. }
                | Self::Weights { .. }
                | Self::Strategy(StrategyError::MinimumScale { .. })
                | Self::Data(DataError::Sample(SampleError::EmptyEpoch { .. }))
        )
    }

    /// Returns whether the error is about other ranks.
    fn is_of_world(&self) -> bool {
        use WorldError::{Deadline, Mismatch, Mpi, Rank};
        matches!(
            self,
            Self::Strategy(StrategyError::World(Rank { .. } | Deadline { .. } | Mismatch { .. } | Mpi(_)))
        )
    }
}

#[cfg(test)]
mod tests {
    use firebrick_world::World;

    use super::*;

    fn ended(train: impl FnOnce(Communicator) -> Result<(), TrainError>) -> Option<WorldError> {
        let mut ranks = World::threads(2).join().unwrap();
        let ended = on_this_thread(ranks.remove(1), train);
        assert!(ended.result.is_err());
        assert_eq!(ranks[0].failure(), ended.failure);
        ended.failure
    }

    #[test]
    fn the_others_are_told_what_a_rank_met_unless_they_meet_it_too() {
        let error = ended(|_| Err(TrainError::NoModel)).unwrap().to_string();
        assert!(error.starts_with("rank 1 failed: no strategy returned"), "{error}");
        let error = ended(|_| panic!("out of tune")).unwrap().to_string();
        assert!(error.starts_with("rank 1 failed: panicked: out of tune"), "{error}");
        assert_eq!(ended(|_| Err(TrainError::Diverged { updates: 100, first: None })), None);
    }
}
