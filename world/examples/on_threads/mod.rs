//! The ranks of a process, each in a thread.

use firebrick_world::{Communicator, WorldError};

/// What each rank of this process returns.
pub fn on_threads<T: Send>(
    ranks: Vec<Communicator>,
    rank: impl Fn(&Communicator) -> Result<T, WorldError> + Sync,
) -> Result<Vec<T>, WorldError> {
    std::thread::scope(|scope| {
        let start = |communicator: Communicator| {
            scope.spawn(|| {
                let communicator = communicator;
                rank(&communicator)
            })
        };
        let threads: Vec<_> = ranks.into_iter().map(start).collect();
        let join = |thread: std::thread::ScopedJoinHandle<_>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}
