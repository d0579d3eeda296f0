//! Ranks as threads, for tests.

use std::sync::{Barrier, Mutex};

use burn::tensor::{Device, Tensor, TensorData};

use crate::{
    Collective, Communicator, DeviceCollectives, PartShape, Summing, World, WorldError, host_device,
};

/// Returns the device that `BURN_DEVICE` names, as in the program `firebrick`, or the CPU by default.
pub fn device() -> Device {
    match std::env::var("BURN_DEVICE").as_deref() {
        Err(_) | Ok("cpu") => Device::flex(),
        // Burn reads the variable itself, and panics if the build lacks that backend.
        Ok(_) => Device::default(),
    }
}

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
    run_between(world, None, rank)
}

/// Like [`run`], for ranks whose devices may exchange by themselves.
pub fn run_between<T: Send>(
    world: World,
    between: Option<DeviceCollectives>,
    rank: impl Fn(Communicator) -> Result<T, WorldError> + Sync,
) -> Vec<Result<T, WorldError>> {
    let outcomes = outcomes(world, |communicator| rank(communicator.between_devices(between.clone())));
    outcomes.into_iter().map(|outcome| outcome.expect("no rank panics")).collect()
}

/// Returns host data as a flat tensor in host memory.
pub fn flat(data: TensorData) -> Tensor<1> {
    let (dtype, elements) = (data.dtype(), data.num_elements());
    let (bytes, ..) = data.into_parts();
    Tensor::from_data(TensorData::from_bytes(bytes, [elements], dtype), (&host_device(), dtype))
}

/// A way to begin a sum: [`Communicator::begin_all_reduce`] or [`Communicator::begin_reduce_scatter`].
type Begin =
    fn(&Communicator, &str, Vec<Option<Tensor<1>>>, &[PartShape], &Device) -> Result<Summing, WorldError>;

/// Sums host data, flattened, and returns the sums as host data.
pub fn sums(
    begin: Begin,
    rank: &Communicator,
    what: &str,
    parts: Vec<Option<TensorData>>,
    like: &[PartShape],
) -> Result<Vec<Option<TensorData>>, WorldError> {
    let parts = parts.into_iter().map(|part| part.map(flat)).collect();
    let sums = begin(rank, what, parts, like, &host_device())?.wait()?;
    Ok(sums.into_iter().map(|sum| sum.map(Tensor::into_data)).collect())
}

/// Begins to gather host data, flattened.
pub fn gather(
    rank: &Communicator,
    what: &str,
    shards: Vec<TensorData>,
) -> Result<crate::Gathering, WorldError> {
    rank.begin_all_gather(what, shards.into_iter().map(flat).collect(), &host_device())
}

/// Returns gathered parts as host data.
pub fn gathered(parts: Vec<Tensor<1>>) -> Vec<TensorData> {
    parts.into_iter().map(Tensor::into_data).collect()
}

/// Stands in for NCCL between ranks on the tests' device.
pub fn by_hand(ranks: usize) -> DeviceCollectives {
    DeviceCollectives::new(vec![device(); ranks], exchange_by_hand(ranks))
}

/// Exchanges the ranks' tensors as [`DeviceCollectives::new`] asks, and sums them in rank order.
pub fn exchange_by_hand(ranks: usize) -> impl Fn(usize, Collective, Tensor<1>) -> Tensor<1> + Send + Sync {
    let (brought, met) = (Mutex::new(vec![None; ranks]), Barrier::new(ranks));
    move |rank, kind, part| {
        let chunk = part.dims()[0] / ranks;
        brought.lock().unwrap()[rank] = Some(part);
        met.wait();
        let parts: Vec<Tensor<1>> = brought.lock().unwrap().iter().flatten().cloned().collect();
        met.wait();
        let sum = |parts: Vec<Tensor<1>>| parts.into_iter().reduce(|sum, part| sum + part).unwrap();
        match kind {
            Collective::AllGather => Tensor::cat(parts, 0),
            Collective::ReduceScatter => sum(parts).narrow(0, rank * chunk, chunk),
            _ => sum(parts),
        }
    }
}
