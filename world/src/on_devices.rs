//! Sums between the devices of ranks, without the host: NCCL, through Burn.
//!
//! If each rank is a thread of this process with its own CUDA device, the tensors need not pass through host memory. Burn's
//! collectives only sum onto all ranks, so the others are made of that sum: a rank takes its chunk of it, or adds its shard
//! to zeros.
//!
//! NCCL waits forever for a missing rank and cannot be interrupted. The ranks therefore first agree, as in
//! every other call and within its deadline, on what to sum and on who has it. Each rank does so, and runs the sum, in
//! another thread; it waits, again under the deadline, until all ranks report that their device has finished. If a
//! device fails, for example because its memory is full, the call ends on every rank with an error that names it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use burn::tensor::{DType, DataError, FloatDType, Tensor, TensorData, TensorReadError};
use bytes::Bytes;

use crate::call::Call;
use crate::message::Piece;
use crate::seat::Seat;
use crate::{Activity, Communicator, DeviceSums, Kind, PartShape, WorldError, worker};

/// What a rank says if its device fails.
const FAILED: &str = "its device did not sum";

/// A sum between the ranks' devices in flight.
pub(crate) struct SumOfDevices {
    seat: Arc<Seat>,
    /// Ends when the ranks have agreed, or cannot agree: within the deadline.
    agreed: Receiver<()>,
    /// The exchange in which all ranks report that they have the sum.
    ended: (Arc<Call>, u64),
    sums: Receiver<Result<Vec<Option<Tensor<1>>>, WorldError>>,
}

impl Communicator {
    /// Begins to sum the parts of a call, each flat, in its dtype on the wire and on this rank's device. Rounds the sums
    /// like the path through the host, but sends what is to be added in f32: NCCL would round a half-precision sum at
    /// every rank. Returns the whole sums, or the chunk of that number of each.
    pub(crate) fn begin_on_devices(
        &self,
        sums: &DeviceSums,
        call: &Arc<Call>,
        parts: Vec<Option<Tensor<1>>>,
        chunk: Option<usize>,
    ) -> SumOfDevices {
        let of = if call.what.is_empty() { String::new() } else { format!(" of {}", call.what) };
        let what = format!("the devices' sum{of}");
        let ended = self.open(Call::new(Kind::Barrier, &what, vec![]));
        let [agreed, done] = [self.number(), self.number()];
        let work = Work { seat: self.seat().clone(), sums: sums.clone(), call: call.clone(), chunk };
        let posted = ended.clone();
        let ((before, end), (tell, told)) = (self.turn(), channel());
        let sums = worker::start(self.seat(), FAILED, move || {
            let exists = work.agreed(agreed, &parts)?;
            drop(tell);
            // A sum that failed has ended too, and the world with it.
            before.map(|before| before.recv());
            let span = work.seat.timeline.span(Activity::Exchange(work.call.kind), || work.call.what.clone());
            let sums = work.sums(parts, &exists)?;
            drop((span, end));
            work.seat.post(done, &posted, vec![vec![]; work.seat.size()])?;
            Ok(sums)
        });
        SumOfDevices { seat: self.seat().clone(), agreed: told, ended: (ended, done), sums }
    }
}

impl SumOfDevices {
    /// Waits for the sums, once every rank's device has them.
    pub fn wait(self) -> Result<Vec<Option<Tensor<1>>>, WorldError> {
        // Nothing is sent: the other end is dropped. The deadline of the sum starts there.
        let _ = self.agreed.recv();
        let (call, sequence) = &self.ended;
        self.seat.complete(*sequence, call)?;
        self.sums.recv().expect("this rank has reported, so its thread has returned the sums")
    }
}

/// A rank's part of one call.
struct Work {
    seat: Arc<Seat>,
    sums: DeviceSums,
    call: Arc<Call>,
    chunk: Option<usize>,
}

impl Work {
    /// Agrees with the others on the call. Returns whether any rank has each part.
    fn agreed(&self, sequence: u64, parts: &[Option<Tensor<1>>]) -> Result<Vec<bool>, WorldError> {
        // An empty buffer marks a part that this rank has.
        let mark = Piece { bytes: Bytes::new(), element: 1 };
        let mine: Vec<_> = parts.iter().map(|part| part.as_ref().map(|_| mark.clone())).collect();
        let marks = self.seat.exchanged(sequence, &self.call, vec![mine; self.seat.size()])?;
        let any = |at: usize| marks.iter().any(|of_rank| of_rank[at].is_some());
        Ok((0..parts.len()).map(any).collect())
    }

    /// Sums the parts that exist, those of one dtype at once.
    fn sums(
        &self,
        parts: Vec<Option<Tensor<1>>>,
        exists: &[bool],
    ) -> Result<Vec<Option<Tensor<1>>>, WorldError> {
        let gathers = self.call.kind == Kind::AllGather;
        // A shard that is added to zeros is exact in its own dtype.
        let dtype_of = |like: &PartShape| if gathers { like.dtype } else { DType::F32 };
        let device = &self.sums.devices[self.seat.rank];
        let mut groups: Vec<(DType, Vec<usize>, Vec<Tensor<1>>)> = Vec::new();
        for (at, (part, like)) in parts.into_iter().zip(&self.call.parts).enumerate() {
            if !exists[at] {
                continue;
            }
            let dtype = dtype_of(like);
            let part = match part {
                Some(part) if part.dtype() == dtype => part,
                Some(part) => part.cast(FloatDType::from(dtype)),
                None => Tensor::zeros([like.elements()], (device, dtype)),
            };
            match groups.iter_mut().find(|(known, ..)| *known == dtype) {
                Some((_, all, tensors)) => (all.push(at), tensors.push(part)).0,
                None => groups.push((dtype, vec![at], vec![part])),
            }
        }
        let mut sums = vec![None; self.call.parts.len()];
        for (dtype, all, tensors) in groups {
            let lengths: Vec<_> = tensors.iter().map(|tensor| tensor.dims()[0]).collect();
            let sum = self.summed(Tensor::cat(tensors, 0))?;
            self.seat.count_ring(self.call.kind, sum.dims()[0], dtype.size());
            let mut start = 0;
            for (at, elements) in all.into_iter().zip(lengths) {
                let Range { start: from, end } = self.range(elements);
                let part = sum.clone().narrow(0, start + from, end - from);
                start += elements;
                let to = if gathers { dtype } else { self.call.parts[at].sum };
                sums[at] = Some(if part.dtype() == to { part } else { part.cast(FloatDType::from(to)) });
            }
        }
        Ok(sums)
    }

    /// Returns the elements of a part's sum that this rank wants.
    fn range(&self, elements: usize) -> Range<usize> {
        self.chunk.map_or(0..elements, |chunk| {
            let each = elements / self.seat.size();
            chunk * each..(chunk + 1) * each
        })
    }

    /// Sums a buffer, and waits until the device has the sum: one that has only started may still fail or never end.
    fn summed(&self, flat: Tensor<1>) -> Result<Tensor<1>, WorldError> {
        let sum = (self.sums.sum)(self.seat.rank, flat);
        there(&sum).map_err(|error| {
            self.seat.fail(&format!("{FAILED}: {error}"));
            self.call.unread(error)
        })?;
        Ok(sum)
    }
}

fn there(sum: &Tensor<1>) -> Result<(), TensorReadError> {
    Ok(read(sum.clone().slice(0..1).cast(FloatDType::F32).try_into_data()?)?)
}

/// Waits for data to be in host memory: CUDA copies it at the first access to the bytes, which waits for the
/// computation.
fn read(data: TensorData) -> Result<(), DataError> {
    data.as_slice::<f32>().map(drop)
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::World;
    use crate::testing::{self, by_hand, run_summing};

    fn begun(
        rank: &Communicator,
        parts: Vec<Option<Tensor<1>>>,
        like: &[PartShape],
    ) -> Result<Vec<Option<Tensor<1>>>, WorldError> {
        rank.begin_all_reduce("the test", parts, like, &testing::device())?.wait()
    }

    fn numbers(tensor: Tensor<1>) -> Vec<f32> {
        tensor.into_data().iter::<f32>().collect()
    }

    #[test]
    fn parts_that_some_ranks_lack_are_summed() {
        let like = [3, 2, 1].map(|elements| PartShape::flat(elements, DType::F32));
        let sums = run_summing(World::threads(3), Some(by_hand(3)), |rank| {
            let part = |values: &[f32]| Some(Tensor::<1>::from_data(values, &testing::device()));
            let number = rank.rank() as f32;
            let second = if rank.rank() == 1 { part(&[8.0, 9.0]) } else { None };
            let sums = begun(&rank, vec![part(&[number, 1.0, -number]), second, None], &like)?;
            let sums: Vec<_> = sums.into_iter().map(|sum| sum.map(numbers)).collect();
            Ok((sums, rank.traffic().of(Kind::AllReduce)))
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
        let like = [PartShape::flat(1, DType::F16)];
        let sums = run_summing(World::threads(3), Some(by_hand(3)), |rank| {
            // 2049 is not an f16: rounding at every step would give 2048.
            let mine = if rank.rank() == 0 { 2048.0 } else { 1.0 };
            let part = Tensor::<1>::from_data([mine], (&testing::device(), DType::F16));
            let sum = begun(&rank, vec![Some(part)], &like)?.remove(0).unwrap();
            assert_eq!(sum.dtype(), DType::F16);
            Ok(numbers(sum))
        });
        sums.into_iter().for_each(|sum| assert_eq!(sum.unwrap(), [2050.0]));
        assert!(!DeviceSums::takes(&[PartShape::flat(1, DType::F64)]));
    }

    /// Each rank's chunk of a sum, and the shards of all, keep every bit, whatever their dtypes.
    #[test]
    fn chunks_and_gathered_shards_are_parts_of_sums() {
        let odd = [f32::from_bits(0x7FC1_2345), -0.0, f32::MIN_POSITIVE, 3.0];
        let found = run_summing(World::threads(2), Some(by_hand(2)), |rank| {
            let device = testing::device();
            let part = Tensor::<1>::from_data([1.0, 2.0, 3.0, 4.0], &device);
            let like = [PartShape::flat(4, DType::F32)];
            let chunk = rank.begin_reduce_scatter("", vec![Some(part)], &like, &device)?.wait()?;
            let sign = if rank.rank() == 0 { 1.0 } else { -1.0 };
            let half = Tensor::<1>::from_data([sign, 0.5], (&device, DType::F16));
            let shards = vec![Tensor::from_data(odd, &device), half, Tensor::from_data([sign], &device)];
            let all = rank.begin_all_gather("", shards, &device)?.wait()?;
            assert_eq!(all[1].dtype(), DType::F16);
            let bits = |tensor: Tensor<1>| numbers(tensor).into_iter().map(f32::to_bits).collect::<Vec<_>>();
            let all: Vec<_> = all.into_iter().map(bits).collect();
            Ok((numbers(chunk.into_iter().flatten().next().unwrap()), all, rank.traffic()))
        });
        for (rank, found) in found.into_iter().enumerate() {
            let (chunk, all, traffic) = found.unwrap();
            assert_eq!(chunk, [[2.0, 4.0], [6.0, 8.0]][rank]);
            let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(all, [bits(&[odd, odd].concat()), bits(&[1.0, 0.5, -1.0, 0.5]), bits(&[1.0, -1.0])]);
            // Each is a ring's sum: all four elements, and twice the shards of the other rank.
            assert_eq!(traffic.of(Kind::ReduceScatter).elements, 4);
            assert_eq!(traffic.of(Kind::AllGather).elements, 2 * (4 + 2 + 1));
        }
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

    /// Sums that are on their way together meet the same sums of the other ranks.
    #[test]
    fn sums_in_flight_keep_their_order() {
        let like = [PartShape::flat(2, DType::F32)];
        let found = run_summing(World::threads(3), Some(by_hand(3)), |rank| {
            let device = testing::device();
            let begin = |at: usize| {
                let part = Tensor::<1>::from_data([at as f32, rank.rank() as f32], &device);
                rank.begin_all_reduce("", vec![Some(part)], &like, &device)
            };
            let under_way = (0..20).map(begin).collect::<Result<Vec<_>, _>>()?;
            let mut sums = Vec::new();
            for summing in under_way.into_iter().rev() {
                sums.extend(summing.wait()?.into_iter().flatten().map(numbers));
            }
            Ok(sums)
        });
        for found in found {
            let expected: Vec<_> = (0..20).rev().map(|at| vec![3.0 * at as f32, 3.0]).collect();
            assert_eq!(found.unwrap(), expected);
        }
    }

    /// No rank starts a sum before all have agreed on it, because it would never end.
    #[test]
    fn disagreeing_ranks_start_no_sum() {
        let part = |elements: usize| vec![Some(Tensor::<1>::zeros([elements], &testing::device()))];
        let sums = run_summing(World::threads(2), Some(on(2, |_, part| never(part))), |rank| {
            let elements = 1 + rank.rank();
            begun(&rank, part(elements), &[PartShape::flat(elements, DType::F32)])
        });
        assert!(sums.into_iter().all(|sum| matches!(sum, Err(WorldError::Mismatch { .. }))));
        let limit = Duration::from_millis(1);
        let sums = run_summing(World::threads(2).deadline(limit), Some(by_hand(2)), |rank| {
            match rank.rank() {
                0 => begun(&rank, part(1), &[PartShape::flat(1, DType::F32)]).map(drop),
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
                            devices' sum";
            assert_eq!(sum.unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn a_sum_that_never_ends_stops_at_the_deadline() {
        // Long enough for the ranks to agree.
        let world = World::threads(2).deadline(Duration::from_secs(2));
        let sum = |rank, part| if rank == 1 { never(part) } else { part };
        for sum in run_summing(world, Some(on(2, sum)), sum_of_ones) {
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
