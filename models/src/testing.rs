//! Device and ranks for tests.

use burn::tensor::Device;
use firebrick_strategies::{Communicator, World};

/// Returns the device that `BURN_DEVICE` names, as in the program; the CPU by default.
pub fn device() -> Device {
    let name = std::env::var("BURN_DEVICE").unwrap_or("cpu".into());
    firebrick::device::find(&name).unwrap_or_else(|error| panic!("BURN_DEVICE: {error}")).0
}

/// Runs `rank` on each of several ranks, a thread each, and returns their results.
pub fn on_ranks<T: Send>(ranks: usize, rank: impl Fn(Communicator) -> T + Sync) -> Vec<T> {
    let ranks = World::threads(ranks).join().unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|world| scope.spawn(|| rank(world))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
