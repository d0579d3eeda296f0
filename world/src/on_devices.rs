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
    found: Receiver<Result<Done, WorldError>>,
}

/// What a rank has of each part.
type Found = Result<Vec<Option<Tensor<1>>>, WorldError>;

/// What a rank's device has exchanged.
struct Done {
    found: Vec<Option<Tensor<1>>>,
    /// What the rank gave to a program's collective, which may let other ranks read it. CubeCL 0.11 lets a kernel write
    /// into a tensor that has no other handle, also if a kernel in another queue has yet to read it: while this is held,
    /// there is another handle.
    _given: Vec<Tensor<1>>,
}

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
        let gathers = call.kind == Kind::AllGather;
        let exchange = move || {
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
        };
        let found = match gathers {
            true => worker::queue(self.seat(), FAILED, exchange),
            false => worker::start(self.seat(), FAILED, exchange),
        };
        OnDevices { seat: self.seat().clone(), agreed: told, ended: (ended, done), found }
    }
}

impl OnDevices {
    /// Gives the results up: nobody waits for them.
    pub fn abandon(&self) {
        self.seat.abandon(self.ended.1);
    }

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
                false => format!(" (nor did those of ranks {})", others.join(", ")),
            };
            let (call, reason) = (call.to_string(), format!("failed: {FAILED}{nor}: {why}"));
            return Err(self.seat.exchange.fail(WorldError::Rank { rank, call, reason }));
        }
        let done = self.found.recv().expect("this rank has reported, so its thread has returned the results");
        Ok(done?.found)
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
    fn exchange(&self, parts: Vec<Option<Tensor<1>>>, exists: &[bool]) -> Result<Done, Unfinished> {
        let (kind, ranks) = (self.call.kind, self.seat.size());
        let gathers = kind == Kind::AllGather;
        // Shards travel in their own dtype, since nothing is added.
        let dtype_of = |like: &PartShape| if gathers { like.dtype } else { DType::F32 };
        let device = self.collectives.device(self.seat.rank);
        let (mut found, mut given) = (vec![None; self.call.parts.len()], Vec::new());
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
        for (dtype, all, mut tensors) in alike {
            let rounded = |at: usize, part: Tensor<1>| {
                let to = if gathers { dtype } else { self.call.parts[at].sum };
                Some(if part.dtype() == to { part } else { part.cast(FloatDType::from(to)) })
            };
            // One alone travels as it is.
            if let [at] = all[..] {
                found[at] = rounded(at, self.exchanged(tensors.remove(0), &mut given)?);
                continue;
            }
            // What the collective splits or joins by ranks has a row for each.
            let (before, after) = match kind {
                Kind::ReduceScatter => (ranks, 1),
                Kind::AllGather => (1, ranks),
                _ => (1, 1),
            };
            let columns: Vec<_> = tensors.iter().map(|tensor| tensor.dims()[0] / before).collect();
            let width: usize = columns.iter().sum();
            let mine = match before {
                1 => Tensor::cat(tensors, 0),
                _ => {
                    let rows = tensors.into_iter().zip(&columns);
                    let rows = rows.map(|(tensor, columns)| tensor.reshape([before, *columns]));
                    Tensor::cat(rows.collect(), 1).reshape([before * width])
                }
            };
            let result = self.exchanged(mine, &mut given)?;
            let mut start = 0;
            for (at, columns) in all.into_iter().zip(columns) {
                let part = match after {
                    1 => result.clone().narrow(0, start, columns),
                    _ => {
                        let rows = result.clone().reshape([after, width]).narrow(1, start, columns);
                        rows.reshape([after * columns])
                    }
                };
                start += columns;
                found[at] = rounded(at, part);
            }
        }
        Ok(Done { found, _given: given })
    }

    /// Exchanges a buffer, counts what moves, and waits until the device has the result.
    fn exchanged(&self, mine: Tensor<1>, given: &mut Vec<Tensor<1>>) -> Result<Tensor<1>, Unfinished> {
        let (seat, kind) = (&self.seat, self.call.kind);
        let (elements, bytes) = (mine.dims()[0], mine.dtype().size());
        let whole = if kind == Kind::AllGather { elements * seat.size() } else { elements };
        let result = match &self.collectives.by {
            By::Program(collective) => {
                given.push(mine.clone());
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
#[path = "on_devices_tests.rs"]
mod tests;
