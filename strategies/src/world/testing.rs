//! Ranks as threads, for tests.

use std::sync::{Arc, Barrier, Mutex};

use burn::tensor::Tensor;

use super::{Communicator, OnDevices, World, WorldError};
use crate::testing::device;

/// Runs a closure on each rank and returns the results by rank; `None` for a rank that panics.
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

/// Runs a closure on each rank and returns the results by rank.
pub fn run<T: Send>(
    world: World,
    rank: impl Fn(Communicator) -> Result<T, WorldError> + Sync,
) -> Vec<Result<T, WorldError>> {
    run_summing(world, None, rank)
}

/// Like [`run`], for ranks whose devices may sum by themselves.
pub fn run_summing<T: Send>(
    world: World,
    on_devices: Option<Arc<OnDevices>>,
    rank: impl Fn(Communicator) -> Result<T, WorldError> + Sync,
) -> Vec<Result<T, WorldError>> {
    let outcomes = outcomes(world, |communicator| rank(communicator.summing(on_devices.clone())));
    outcomes.into_iter().map(|outcome| outcome.expect("no rank panics")).collect()
}

/// Stands in for NCCL: sums the ranks' tensors in rank order.
pub fn by_hand(ranks: usize) -> Arc<OnDevices> {
    let (brought, met) = (Mutex::new(vec![None; ranks]), Barrier::new(ranks));
    let sum = move |rank: usize, part: Tensor<1>| {
        brought.lock().unwrap()[rank] = Some(part);
        met.wait();
        let parts: Vec<Tensor<1>> = brought.lock().unwrap().iter().flatten().cloned().collect();
        met.wait();
        parts.into_iter().reduce(|sum, part| sum + part).unwrap()
    };
    Arc::new(OnDevices::with(vec![device(); ranks], Arc::new(sum)))
}

/// A fake sum that returns each rank's own tensor times three, which reveals who took this path.
pub fn thrice(ranks: usize) -> Arc<OnDevices> {
    Arc::new(OnDevices::with(vec![device(); ranks], Arc::new(|_, part| part * 3.0)))
}
