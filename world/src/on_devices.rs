//! Collectives between the devices of ranks, without the host: NCCL's, or a program's own.
//!
//! Such a collective waits forever for a missing rank. The ranks therefore first agree, as in every other call and within
//! its deadline, on what to exchange and on who has it. Each rank does so, and exchanges, in another thread; it
//! waits, again under the deadline, until all ranks report that their device has finished. A rank whose device waits in
//! vain reports that too, shortly before the deadline, so that the error names the ranks that do not report. If a
//! device fails, for example because its memory is full, the call ends on every rank with an error that names it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use burn::tensor::{DType, DataError, Device, FloatDType, Tensor, TensorData, TensorReadError};
use bytes::Bytes;
use firebrick_kernels::Handover;

use crate::call::Call;
use crate::device_collectives::By;
use crate::joined::Joined;
use crate::message::Piece;
#[cfg(feature = "nccl")]
use crate::nccl::{Stop, Watch, identifier};
use crate::seat::Seat;
use crate::{Activity, Collective, Communicator, DeviceCollectives, WorldError, seat};

/// What a rank says if its device fails.
const FAILED: &str = "its device did not exchange";

/// A collective between the ranks' devices in flight.
pub(crate) struct OnDevices {
    seat: Arc<Seat>,
    call: Arc<Call>,
    device: Device,
    /// Ends when the ranks have agreed, or cannot agree: within the deadline.
    agreed: Receiver<()>,
    /// The exchange in which all ranks report.
    ended: (Arc<Call>, u64),
    found: Receiver<Result<Done, WorldError>>,
}

/// What a rank has of each part.
type Found = Result<Vec<Option<Tensor<1>>>, WorldError>;

/// What a rank gives to a collective.
struct Contribution {
    joined: Joined,
    /// The buffers, and then, for NCCL, room for each result.
    tensors: Handover,
}

/// What a rank's device has exchanged.
struct Done {
    joined: Joined,
    results: Vec<Tensor<1>>,
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
    /// every rank. Returns the whole sums, this rank's chunk of each, the gathered parts, or those of the rank before, as the call
    /// says.
    pub(crate) fn begin_on_devices(
        &self,
        collectives: &DeviceCollectives,
        call: &Arc<Call>,
        parts: Vec<Option<Tensor<1>>>,
    ) -> OnDevices {
        let of = if call.what.is_empty() { String::new() } else { format!(" of {}", call.what) };
        let report = Call::new(Collective::Barrier, &format!("the devices' {}{of}", call.kind), vec![]);
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
        let sums = matches!(call.kind, Collective::AllReduce | Collective::ReduceScatter);
        // The device joins the parts behind what this thread has queued so far, and exchanges them beside what it queues next.
        // Most ranks have the parts that exist, or none of them, such as a rank without a sample.
        let has: Vec<_> = parts.iter().map(Option::is_some).collect();
        let likely = if has.contains(&true) { has.clone() } else { vec![true; has.len()] };
        let given = work.join(&likely, parts);
        let exchange = move || {
            let exists = work.agreed(agreed, &has)?;
            drop(tell);
            // One that failed has ended too, and the world with it.
            before.map(|before| before.recv());
            let span = work.seat.timeline.span(Activity::Exchange(work.call.kind), || work.call.what.clone());
            #[cfg(feature = "nccl")]
            let joined = joins.map_or(Ok(()), |sequence| work.join_nccl(sequence));
            #[cfg(not(feature = "nccl"))]
            let joined = Ok(());
            let given = if exists == likely { given } else { work.join_again(&exists, given) };
            let found = joined.and_then(|()| work.exchange(given));
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
        let found = match sums {
            true => seat::start(self.seat(), FAILED, exchange),
            false => seat::queue(self.seat(), FAILED, exchange),
        };
        let (seat, device) = (self.seat().clone(), collectives.own(self.rank()).clone());
        OnDevices { seat, call: call.clone(), device, agreed: told, ended: (ended, done), found }
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
        let Done { joined, results, .. } = done?;
        Ok(joined.found(&self.call, results, &self.device))
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
    fn agreed(&self, sequence: u64, has: &[bool]) -> Result<Vec<bool>, WorldError> {
        // An empty buffer marks a part that this rank has.
        let mark = Piece { bytes: Bytes::new(), element: 1 };
        let mine: Vec<_> = has.iter().map(|has| has.then(|| mark.clone())).collect();
        let marks = self.seat.exchanged(sequence, &self.call, vec![mine; self.seat.size()])?;
        let any = |at: usize| marks.iter().any(|of_rank| of_rank[at].is_some());
        Ok((0..has.len()).map(any).collect())
    }

    /// Joins the parts that `exists` names, and hands them over to the thread that exchanges them.
    fn join(&self, exists: &[bool], parts: Vec<Option<Tensor<1>>>) -> Contribution {
        let device = self.collectives.own(self.seat.rank);
        let joined = Joined::of(&self.call, exists, self.seat.size());
        let mut tensors = joined.join(parts, device);
        if self.collectives.are_of_nccl() {
            tensors
                .extend(joined.results().map(|(elements, dtype)| Tensor::empty([elements], (device, dtype))));
        }
        Contribution { joined, tensors: Handover::of(tensors) }
    }

    /// Joins the parts that any rank has, if those are others.
    fn join_again(&self, exists: &[bool], given: Contribution) -> Contribution {
        let buffers = given.tensors.into_tensors();
        let _held = buffers.clone();
        self.join(exists, given.joined.parts_of(&self.call, buffers))
    }

    /// Exchanges what the rank gives, counts what moves, and waits until the device has the results.
    fn exchange(&self, Contribution { joined, tensors }: Contribution) -> Result<Done, Unfinished> {
        let (seat, kind) = (&self.seat, self.call.kind);
        let (mut results, mut given) = (Vec::new(), Vec::new());
        let count = |(elements, dtype): (usize, DType)| seat.count_ring(kind, elements, dtype.size());
        match &self.collectives.by {
            By::Program(collective) => {
                for (mine, size) in tensors.into_tensors().into_iter().zip(joined.buffers()) {
                    given.push(mine.clone());
                    let result = collective(seat.rank, kind, mine);
                    // One that has only started may still fail or never end.
                    there(&result).map_err(|error| {
                        seat.fail(&format!("{FAILED}: {error}"));
                        self.call.unread(error)
                    })?;
                    results.push(result);
                    count(size);
                }
            }
            #[cfg(feature = "nccl")]
            By::Nccl(nccl) => {
                let mut watch = Watch::of(seat);
                let mut buffers = nccl.lend(tensors).map_err(|stop| self.unfinished(stop))?;
                let rooms = buffers.split_off(buffers.len() / 2);
                for ((mine, room), size) in buffers.into_iter().zip(rooms).zip(joined.buffers()) {
                    let result =
                        nccl.exchange(kind, [mine, room], size, (seat.rank, seat.size()), &mut watch);
                    results.push(result.map_err(|stop| self.unfinished(stop))?);
                    count(size);
                }
            }
        }
        Ok(Done { joined, results, _given: given })
    }

    /// Joins the other ranks' NCCL, with the identifier that the first of them makes.
    #[cfg(feature = "nccl")]
    fn join_nccl(&self, sequence: u64) -> Result<(), Unfinished> {
        let By::Nccl(nccl) = &self.collectives.by else { return Ok(()) };
        let (seat, call) = (&self.seat, Call::new(Collective::Scalars, "NCCL's identifier", vec![]));
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
