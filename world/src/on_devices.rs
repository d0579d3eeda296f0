//! Sums between the devices of ranks, without the host: NCCL, through Burn.
//!
//! If each rank is a thread of this process with its own CUDA device, the tensors need not pass through
//! host memory to be summed. Burn's collectives only sum onto all ranks, so this module handles all-reduce;
//! every other collective goes through the host.
//!
//! NCCL waits forever for a missing rank and cannot be interrupted. The ranks therefore first agree, as in
//! every other call and within its deadline, on what to sum and on who has it. Each rank then runs the sum in
//! another thread and waits, again under the deadline, until all ranks report that their device has finished. If a
//! device fails, for example because its memory is full, the call ends on every rank with an error that names it.

use std::any::Any;
use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;

use burn::tensor::{DType, DataError, FloatDType, StreamId, Tensor, TensorData, TensorReadError};

use crate::call::Call;
use crate::exchange::Piece;
use crate::{Communicator, DeviceSums, Kind, PartShape, WorldError};

/// The sums on the ranks' devices, of a rank whose devices can make them: see [`Communicator::on_devices`].
#[derive(Clone, Copy, Debug)]
pub struct OnDevices<'a> {
    world: &'a Communicator,
    sums: &'a DeviceSums,
}

impl Communicator {
    /// Returns the sums on the ranks' devices, if the devices can sum parts like these without the host.
    pub fn on_devices(&self, like: &[PartShape]) -> Option<OnDevices<'_>> {
        let sums = self.device_sums().filter(|_| DeviceSums::takes(like))?;
        Some(OnDevices { world: self, sums })
    }
}

impl OnDevices<'_> {
    /// Sums parts like [`Communicator::all_reduce_parts`], each of which is flat and on the rank's device. Rounds each
    /// to its [dtype on the wire](PartShape::dtype), like the path through the host, but sends it in f32: NCCL would
    /// round a half-precision sum at every rank.
    ///
    /// # Errors
    ///
    /// [`WorldError`] if a rank fails, ends, makes a different call, or is late, or if its device does not sum.
    pub fn all_reduce(
        &self,
        what: &str,
        parts: Vec<Option<Tensor<1>>>,
        like: &[PartShape],
    ) -> Result<Vec<Option<Tensor<1>>>, WorldError> {
        let world = self.world;
        let call = world.open(Call::new(Kind::AllReduce, what, like.to_vec()));
        // An empty buffer marks a part that this rank has.
        let mark = Piece { bytes: bytes::Bytes::new(), element: 1 };
        let mine: Vec<_> = parts.iter().map(|part| part.as_ref().map(|_| mark.clone())).collect();
        let marks = world.exchange(&call, vec![mine; world.size()])?;
        let exists: Vec<bool> =
            (0..like.len()).map(|at| marks.iter().any(|of_rank| of_rank[at].is_some())).collect();
        let device = &self.sums.devices[world.rank()];
        let there = parts.into_iter().zip(like).zip(&exists).filter(|(_, exists)| **exists);
        let flat = there.map(|((part, like), _)| match part {
            Some(part) => part.cast(FloatDType::from(like.dtype)).cast(FloatDType::F32),
            None => Tensor::zeros([like.elements()], (device, DType::F32)),
        });
        let flat: Vec<_> = flat.collect();
        if flat.is_empty() {
            return Ok(vec![None; like.len()]);
        }
        let sum = self.summed(what, Tensor::cat(flat, 0))?;
        world.count_ring(Kind::AllReduce, sum.dims()[0], DType::F32.size());
        let mut start = 0;
        let sums = like.iter().zip(exists).map(|(like, exists)| {
            exists.then(|| {
                let part = sum.clone().narrow(0, start, like.elements());
                start.add_assign(like.elements());
                part.cast(FloatDType::from(like.sum))
            })
        });
        Ok(sums.collect())
    }

    /// Returns the sum, once every rank's device has it.
    fn summed(&self, what: &str, flat: Tensor<1>) -> Result<Tensor<1>, WorldError> {
        let world = self.world;
        let call = world.open(Call::new(Kind::Barrier, &format!("the devices' sum of {what}"), vec![]));
        let sequence = world.number();
        let (hand_over, handed_over) = mpsc::channel();
        let (rank, sum, posted) = (world.clone(), self.sums.sum.clone(), call.clone());
        // Shares this thread's stream: a new stream would hold its own memory on the device.
        let stream = StreamId::current();
        thread::spawn(move || {
            let sum = || there(sum(rank.rank(), flat));
            let reason = match catch_unwind(AssertUnwindSafe(|| stream.executes(sum))) {
                Ok(Ok(sum)) => {
                    // If nobody listens any more, the receiver has already got the error.
                    let _ = hand_over.send(sum);
                    let _ = rank.post_as(sequence, &posted, vec![vec![]; rank.size()]);
                    return;
                }
                Ok(Err(error)) => error.to_string(),
                Err(panic) => panic_message(&*panic).to_string(),
            };
            rank.fail(&format!("its device did not sum: {reason}"));
        });
        world.complete(&call, sequence)?;
        Ok(handed_over.recv().expect("it was handed over before this rank's message"))
    }
}

/// Waits until the device has finished the sum: a sum that has only started may still fail or never end.
fn there(sum: Tensor<1>) -> Result<Tensor<1>, TensorReadError> {
    read(sum.clone().slice(0..1).try_into_data()?)?;
    Ok(sum)
}

/// Waits for data to be in host memory: CUDA copies it at the first access to the bytes, which waits for the
/// computation.
fn read(data: TensorData) -> Result<(), DataError> {
    data.as_slice::<f32>().map(drop)
}

/// Returns a panic's message.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::World;
    use crate::testing::{self, by_hand, run_summing};

    fn like(elements: usize, dtype: DType, sum: DType) -> PartShape {
        PartShape { shape: vec![elements], dtype, sum }
    }

    #[test]
    fn parts_that_some_ranks_lack_are_summed() {
        let like = [3, 2, 1].map(|elements| like(elements, DType::F32, DType::F32));
        let sums = run_summing(World::threads(3), Some(by_hand(3)), |rank| {
            let part = |values: &[f32]| Some(Tensor::<1>::from_data(values, &testing::device()));
            let number = rank.rank() as f32;
            let second = if rank.rank() == 1 { part(&[8.0, 9.0]) } else { None };
            let parts = vec![part(&[number, 1.0, -number]), second, None];
            let sums = rank.on_devices(&like).unwrap().all_reduce("the test", parts, &like)?;
            let read = |sum: Option<Tensor<1>>| sum.map(|sum| sum.into_data().try_to_vec::<f32>().unwrap());
            Ok((sums.into_iter().map(read).collect::<Vec<_>>(), rank.traffic().of(Kind::AllReduce)))
        });
        for sum in sums {
            let (sums, moved) = sum.unwrap();
            assert_eq!(sums, [Some(vec![3.0, 3.0, -3.0]), Some(vec![8.0, 9.0]), None]);
            // A ring sends 2(N-1)/N of the five elements, rounded up.
            assert_eq!((moved.calls, moved.elements, moved.sent, moved.received), (1, 7, 28, 28));
        }
    }

    #[test]
    fn halves_are_summed_in_f32_and_rounded_once() {
        let like = [like(1, DType::F16, DType::F16)];
        let sums = run_summing(World::threads(3), Some(by_hand(3)), |rank| {
            // 2049 is not an f16: rounding at every step would give 2048.
            let mine = if rank.rank() == 0 { 2048.0 } else { 1.0 };
            let part = Tensor::<1>::from_data([mine], (&testing::device(), DType::F16));
            let sum = rank.on_devices(&like).unwrap().all_reduce("", vec![Some(part)], &like)?;
            let sum = sum.into_iter().flatten().next().unwrap();
            assert_eq!(sum.dtype(), DType::F16);
            Ok(sum.into_data().iter::<f32>().collect::<Vec<_>>())
        });
        sums.into_iter().for_each(|sum| assert_eq!(sum.unwrap(), [2050.0]));
        assert!(!DeviceSums::takes(&[PartShape { shape: vec![1], dtype: DType::F64, sum: DType::F64 }]));
    }

    #[test]
    fn tensors_are_summed_on_their_devices() {
        let sums = run_summing(World::threads(2), Some(by_hand(2)), |rank| {
            let mine = Tensor::<2>::full([2, 3], 1.0 + rank.rank() as f32, &testing::device());
            Ok(rank.all_reduce(mine)?.into_data())
        });
        let expected = Tensor::<2>::full([2, 3], 3.0, &testing::device()).into_data();
        sums.into_iter().for_each(|sum| assert_eq!(sum.unwrap(), expected));
    }

    /// No rank starts a sum before all have agreed on it, because it would never end.
    #[test]
    fn disagreeing_ranks_start_no_sum() {
        let sums = run_summing(World::threads(2), Some(by_hand(2)), |rank| {
            let elements = 1 + rank.rank();
            let part = Tensor::<1>::zeros([elements], &testing::device());
            let like = [like(elements, DType::F32, DType::F32)];
            rank.on_devices(&like).unwrap().all_reduce("", vec![Some(part)], &like)
        });
        assert!(sums.into_iter().all(|sum| matches!(sum, Err(WorldError::Mismatch { .. }))));
        let limit = Duration::from_millis(1);
        let sums = run_summing(World::threads(2).deadline(limit), Some(by_hand(2)), |rank| {
            let part = Tensor::<1>::zeros([1], &testing::device());
            let like = [like(1, DType::F32, DType::F32)];
            match rank.rank() {
                0 => rank.on_devices(&like).unwrap().all_reduce("", vec![Some(part)], &like).map(drop),
                // Arrives only after the other rank has given up.
                _ => {
                    while rank.failure().is_none() {
                        std::thread::yield_now();
                    }
                    Ok(())
                }
            }
        });
        assert!(matches!(&sums[0], Err(WorldError::Deadline { ranks, .. }) if *ranks == [1]));
    }

    fn sum_of_ones(rank: Communicator) -> Result<Tensor<1>, WorldError> {
        rank.all_reduce(Tensor::<1>::ones([2], &testing::device()))
    }

    /// The sum that the other ranks have started never ends in this case.
    #[test]
    fn a_device_that_refuses_ends_the_sum_on_every_rank() {
        let sum = |rank, part| match rank {
            1 => panic!("out of memory"),
            _ => never(part),
        };
        let sums = run_summing(World::threads(3), Some(on(3, sum)), sum_of_ones);
        for sum in sums {
            let expected = "rank 1 failed: its device did not sum: out of memory; this rank was in barrier of the \
                            devices' sum of a tensor on the devices";
            assert_eq!(sum.unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn a_sum_that_never_ends_stops_at_the_deadline() {
        let world = World::threads(2).deadline(Duration::from_millis(1));
        let sum = |rank, part| if rank == 1 { never(part) } else { part };
        let sums = run_summing(world, Some(on(2, sum)), |rank| {
            // Calls `summed` directly: agreeing has the same short deadline and is not under test.
            rank.on_devices(&[]).unwrap().summed("ones", Tensor::ones([2], &testing::device()))
        });
        for sum in sums {
            assert!(matches!(sum, Err(WorldError::Deadline { ranks, .. }) if ranks.contains(&1)));
        }
    }

    /// Data on CUDA behaves the same: it exists, and reading it is what fails.
    #[test]
    fn pending_data_is_awaited() {
        let come = TensorData::from([1.0f32]);
        let to_come = burn::tensor::Bytes::from_file("/nothing/is/here", 4, 0);
        let to_come = TensorData::from_bytes(to_come, [1], DType::F32);
        assert_eq!((read(come).is_ok(), read(to_come).is_ok()), (true, false));
    }

    fn on(ranks: usize, sum: impl Fn(usize, Tensor<1>) -> Tensor<1> + Send + Sync + 'static) -> DeviceSums {
        DeviceSums::new(vec![testing::device(); ranks], sum)
    }

    /// Blocks forever, as NCCL does if a rank is missing.
    fn never(_: Tensor<1>) -> Tensor<1> {
        loop {
            thread::park();
        }
    }
}
