//! Ranks as threads, for tests.

use super::{Communicator, World, WorldError};

/// What each rank returns, by rank; `None` for one that panics.
pub fn outcomes<T: Send>(
    world: World,
    rank: impl Fn(Communicator) -> Result<T, WorldError> + Sync,
) -> Vec<Option<Result<T, WorldError>>> {
    let ranks = world.join().unwrap();
    std::thread::scope(|scope| {
        let start = |communicator| scope.spawn(|| rank(communicator));
        let threads: Vec<_> = ranks.into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().ok()).collect()
    })
}

/// What each rank returns, by rank.
pub fn run<T: Send>(
    world: World,
    rank: impl Fn(Communicator) -> Result<T, WorldError> + Sync,
) -> Vec<Result<T, WorldError>> {
    outcomes(world, rank).into_iter().map(|outcome| outcome.expect("no rank panics")).collect()
}
