//! Collectives between the devices of ranks, without the host: NCCL's, or a program's own.
//!
//! Such a collective waits forever for a missing rank. The ranks therefore first agree, as in every other call and within
//! its deadline, on what to exchange and on who has it. Each rank does so, and exchanges, in another thread; it
//! waits, again under the deadline, until all ranks report that their device has finished. A rank whose device waits in
//! vain reports that too, shortly before the deadline, so that the error names the ranks that do not report. If a
//! device fails, for example because its memory is full, the call ends on every rank with an error that names it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use burn::tensor::{DType, DataError, FloatDType, Tensor, TensorData, TensorReadError};
use bytes::Bytes;

use crate::call::Call;
use crate::device_collectives::By;
use crate::message::Piece;
#[cfg(feature = "nccl")]
use crate::nccl::{Stop, Watch, identifier};
use crate::seat::Seat;
use crate::{Activity, Communicator, DeviceCollectives, Kind, PartShape, WorldError, worker};

/// What a rank says if its device fails.
const FAILED: &str = "its device did not exchange";

/// A collective between the ranks' devices in flight.
pub(crate) struct OnDevices {
    seat: Arc<Seat>,
    /// Ends when the ranks have agreed, or cannot agree: within the deadline.
    agreed: Receiver<()>,
    /// The exchange in which all ranks report.
    ended: (Arc<Call>, u64),
    found: Receiver<Found>,
}

/// What a rank has of each part.
type Found = Result<Vec<Option<Tensor<1>>>, WorldError>;

/// Why a rank's device has no result.
enum Unfinished {
    /// The world is over.
    World(WorldError),
    /// The device has waited in vain: what it says.
    #[cfg_attr(not(feature = "nccl"), expect(dead_code))] // A program's collective cannot be given up.
    GaveUp(String),
}

impl From<WorldError> for Unfinished {
    fn from(error: WorldError) -> Self {
        Self::World(error)
    }
}

impl Communicator {
    /// Begins to exchange the parts of a call, each flat, in its dtype on the wire and on this rank's device. Rounds sums
    /// like the path through the host, but sends what is to be added in f32: NCCL would round a half-precision sum at
    /// every rank. Returns the whole sums, this rank's chunk of each, or the gathered parts, as the call says.
    pub(crate) fn begin_on_devices(
        &self,
        collectives: &DeviceCollectives,
        call: &Arc<Call>,
        parts: Vec<Option<Tensor<1>>>,
    ) -> OnDevices {
        let of = if call.what.is_empty() { String::new() } else { format!(" of {}", call.what) };
        let report = Call::new(Kind::Barrier, &format!("the devices' {}{of}", call.kind), vec![]);
        let ended = self.open(report);
        let [agreed, done] = [self.number(), self.number()];
        #[cfg(feature = "nccl")]
        let joins = match &collectives.by {
            By::Nccl(nccl) => nccl.begins_to_join().then(|| self.number()),
            By::Program(_) => None,
        };
        let work = Work { seat: self.seat().clone(), collectives: collectives.clone(), call: call.clone() };
        let posted = ended.clone();
        let ((before, end), (tell, told)) = (self.turn(), channel());
        let found = worker::start(self.seat(), FAILED, move || {
            let exists = work.agreed(agreed, &parts)?;
            drop(tell);
            // One that failed has ended too, and the world with it.
            before.map(|before| before.recv());
            let span = work.seat.timeline.span(Activity::Exchange(work.call.kind), || work.call.what.clone());
            #[cfg(feature = "nccl")]
            let joined = joins.map_or(Ok(()), |sequence| work.join(sequence));
            #[cfg(not(feature = "nccl"))]
            let joined = Ok(());
            let found = joined.and_then(|()| work.exchange(parts, &exists));
            drop((span, end));
            let (found, report) = match found {
                Ok(found) => (Ok(found), vec![]),
                Err(Unfinished::World(error)) => return Err(error),
                Err(Unfinished::GaveUp(why)) => {
                    let error = work.call.unread(&why);
                    (Err(error), vec![Some(Piece { bytes: Bytes::from(why), element: 1 })])
                }
            };
            work.seat.post(done, &posted, vec![report; work.seat.size()])?;
            found
        });
        OnDevices { seat: self.seat().clone(), agreed: told, ended: (ended, done), found }
    }
}

impl OnDevices {
    /// Waits for the results, once every rank's device has them.
    pub fn wait(self) -> Found {
        // Nothing is sent: the other end is dropped. The deadline of the collective starts there.
        let _ = self.agreed.recv();
        let (call, sequence) = &self.ended;
        let reports = self.seat.complete(*sequence, call)?;
        let gave_up = |pieces: &Vec<Option<Piece>>| {
            let piece = pieces.first()?.as_ref()?;
            Some(String::from_utf8_lossy(&piece.bytes).into_owned())
        };
        let members = self.seat.group.members.iter();
        let mut gave_up = members.zip(&reports).filter_map(|(rank, of)| Some((*rank, gave_up(of)?)));
        if let Some((rank, why)) = gave_up.next() {
            let others: Vec<_> = gave_up.map(|(rank, _)| rank.to_string()).collect();
            let nor = match others.is_empty() {
                true => String::new(),
                false => format!(", nor did those of ranks {}", others.join(", ")),
            };
            let (call, reason) = (call.to_string(), format!("failed: {FAILED}: {why}{nor}"));
            return Err(self.seat.exchange.fail(WorldError::Rank { rank, call, reason }));
        }
        self.found.recv().expect("this rank has reported, so its thread has returned the results")
    }
}

/// A rank's part of one call.
struct Work {
    seat: Arc<Seat>,
    collectives: DeviceCollectives,
    call: Arc<Call>,
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

    /// Exchanges the parts that exist, those of one dtype at once.
    fn exchange(
        &self,
        parts: Vec<Option<Tensor<1>>>,
        exists: &[bool],
    ) -> Result<Vec<Option<Tensor<1>>>, Unfinished> {
        let (kind, ranks) = (self.call.kind, self.seat.size());
        let gathers = kind == Kind::AllGather;
        // Shards travel in their own dtype, since nothing is added.
        let dtype_of = |like: &PartShape| if gathers { like.dtype } else { DType::F32 };
        let device = self.collectives.device(self.seat.rank);
        let mut found = vec![None; self.call.parts.len()];
        let mut alike: Vec<(DType, Vec<usize>, Vec<Tensor<1>>)> = Vec::new();
        for (at, (part, like)) in parts.into_iter().zip(&self.call.parts).enumerate() {
            if !exists[at] {
                continue;
            }
            let dtype = dtype_of(like);
            let part = match (part, device) {
                (Some(part), _) if part.dtype() == dtype => part,
                (Some(part), _) => part.cast(FloatDType::from(dtype)),
                (None, Some(device)) => Tensor::zeros([like.elements()], (device, dtype)),
                (None, None) => unreachable!("a rank exchanges on its device"),
            };
            if like.elements() == 0 {
                found[at] = Some(part.cast(FloatDType::from(like.sum)));
                continue;
            }
            match alike.iter_mut().find(|(known, ..)| *known == dtype) {
                Some((_, all, tensors)) => (all.push(at), tensors.push(part)).0,
                None => alike.push((dtype, vec![at], vec![part])),
            }
        }
        for (dtype, all, tensors) in alike {
            // What the collective splits or joins by ranks has a row for each.
            let (before, after) = match kind {
                Kind::ReduceScatter => (ranks, 1),
                Kind::AllGather => (1, ranks),
                _ => (1, 1),
            };
            let columns: Vec<_> = tensors.iter().map(|tensor| tensor.dims()[0] / before).collect();
            let rows =
                tensors.into_iter().zip(&columns).map(|(tensor, columns)| tensor.reshape([before, *columns]));
            let mine = Tensor::cat(rows.collect(), 1);
            let mine = mine.reshape([before * columns.iter().sum::<usize>()]);
            let result = self.exchanged(mine)?.reshape([after, columns.iter().sum()]);
            let mut start = 0;
            for (at, columns) in all.into_iter().zip(columns) {
                let part = result.clone().narrow(1, start, columns).reshape([after * columns]);
                start += columns;
                let to = if gathers { dtype } else { self.call.parts[at].sum };
                found[at] = Some(if part.dtype() == to { part } else { part.cast(FloatDType::from(to)) });
            }
        }
        Ok(found)
    }

    /// Exchanges a buffer, counts what moves, and waits until the device has the result.
    fn exchanged(&self, mine: Tensor<1>) -> Result<Tensor<1>, Unfinished> {
        let (seat, kind) = (&self.seat, self.call.kind);
        let (elements, bytes) = (mine.dims()[0], mine.dtype().size());
        let whole = if kind == Kind::AllGather { elements * seat.size() } else { elements };
        let result = match &self.collectives.by {
            By::Program(collective) => {
                let result = collective(seat.rank, kind, mine);
                // One that has only started may still fail or never end.
                there(&result).map_err(|error| {
                    seat.fail(&format!("{FAILED}: {error}"));
                    self.call.unread(error)
                })?;
                result
            }
            #[cfg(feature = "nccl")]
            By::Nccl(nccl) => {
                let result = nccl.exchange(kind, mine, seat.size(), &mut Watch::of(seat));
                result.map_err(|stop| self.unfinished(stop))?
            }
        };
        seat.count_ring(kind, whole, bytes);
        Ok(result)
    }

    /// Joins the other ranks' NCCL, with the identifier that the first of them makes.
    #[cfg(feature = "nccl")]
    fn join(&self, sequence: u64) -> Result<(), Unfinished> {
        let By::Nccl(nccl) = &self.collectives.by else { return Ok(()) };
        let (seat, call) = (&self.seat, Call::new(Kind::Scalars, "NCCL's identifier", vec![]));
        let own = match seat.rank {
            0 => identifier().map_err(|why| self.unfinished(Stop::Failed(why)))?,
            _ => vec![],
        };
        let own = Piece { bytes: Bytes::from(own), element: 1 };
        let all = seat.exchanged(sequence, &Arc::new(call), vec![vec![Some(own)]; seat.size()])?;
        let id = all.into_iter().flatten().flatten().next().map(|piece| piece.bytes).unwrap_or_default();
        let joined = nccl.join(&id, seat.rank, seat.size(), &mut Watch::of(seat));
        joined.map_err(|stop| self.unfinished(stop))
    }

    #[cfg(feature = "nccl")]
    fn unfinished(&self, stop: Stop) -> Unfinished {
        match stop {
            Stop::World(error) => Unfinished::World(error),
            Stop::GaveUp(why) => Unfinished::GaveUp(why),
            Stop::Failed(why) => {
                self.seat.fail(&format!("{FAILED}: {why}"));
                Unfinished::World(self.call.unread(why))
            }
        }
    }
}

fn there(result: &Tensor<1>) -> Result<(), TensorReadError> {
    Ok(read(result.clone().slice(0..1).cast(FloatDType::F32).try_into_data()?)?)
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
    use crate::testing::{self, by_hand, run_between};

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
        let sums = run_between(World::threads(3), Some(by_hand(3)), |rank| {
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
        let sums = run_between(World::threads(3), Some(by_hand(3)), |rank| {
            // 2049 is not an f16: rounding at every step would give 2048.
            let mine = if rank.rank() == 0 { 2048.0 } else { 1.0 };
            let part = Tensor::<1>::from_data([mine], (&testing::device(), DType::F16));
            let sum = begun(&rank, vec![Some(part)], &like)?.remove(0).unwrap();
            assert_eq!(sum.dtype(), DType::F16);
            Ok(numbers(sum))
        });
        sums.into_iter().for_each(|sum| assert_eq!(sum.unwrap(), [2050.0]));
        assert!(!DeviceCollectives::takes(&[PartShape::flat(1, DType::F64)]));
    }

    /// Each rank's chunk of a sum, and the shards of all, keep every bit, whatever their dtypes.
    #[test]
    fn chunks_and_gathered_shards_keep_their_bits() {
        let odd = [f32::from_bits(0x7FC1_2345), -0.0, f32::MIN_POSITIVE, 3.0];
        let found = run_between(World::threads(2), Some(by_hand(2)), |rank| {
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
            // The chunk of the other rank, and the shards to it.
            assert_eq!(traffic.of(Kind::ReduceScatter).elements, 2);
            assert_eq!(traffic.of(Kind::AllGather).elements, 4 + 2 + 1);
        }
    }

    #[test]
    fn tensors_are_summed_on_their_devices() {
        let sums = run_between(World::threads(2), Some(by_hand(2)), |rank| {
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
        let found = run_between(World::threads(3), Some(by_hand(3)), |rank| {
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
        let sums = run_between(World::threads(2), Some(on(2, |_, _, part| never(part))), |rank| {
            let elements = 1 + rank.rank();
            begun(&rank, part(elements), &[PartShape::flat(elements, DType::F32)])
        });
        assert!(sums.into_iter().all(|sum| matches!(sum, Err(WorldError::Mismatch { .. }))));
        let limit = Duration::from_millis(1);
        let sums = run_between(World::threads(2).deadline(limit), Some(by_hand(2)), |rank| {
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
        let sum = |rank, _, part| match rank {
            1 => panic!("out of memory"),
            _ => never(part),
        };
        let sums = run_between(World::threads(3), Some(on(3, sum)), sum_of_ones);
        for sum in sums {
            let expected = "rank 1 failed: its device did not exchange: out of memory; this rank was in barrier of the \
                            devices' all_reduce";
            assert_eq!(sum.unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn a_sum_that_never_ends_stops_at_the_deadline() {
        // Long enough for the ranks to agree.
        let world = World::threads(2).deadline(Duration::from_secs(2));
        let sum = |rank, _, part| if rank == 1 { never(part) } else { part };
        for sum in run_between(world, Some(on(2, sum)), sum_of_ones) {
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

    fn on(
        ranks: usize,
        collective: impl Fn(usize, Kind, Tensor<1>) -> Tensor<1> + Send + Sync + 'static,
    ) -> DeviceCollectives {
        DeviceCollectives::new(vec![testing::device(); ranks], collective)
    }

    /// Blocks forever, as NCCL does if a rank is missing.
    fn never(_: Tensor<1>) -> Tensor<1> {
        loop {
            thread::park();
        }
    }
}
