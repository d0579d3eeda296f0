//! A rank's handle to its world.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use burn::tensor::{DType, Device};
use bytes::Bytes;

use crate::call::{Call, Group};
use crate::exchange::Exchange;
use crate::message::Piece;
use crate::seat::Seat;
use crate::{Activity, Collective, DeviceCollectives, PartShape, Span, Timeline, Traffic, WorldError};

/// A rank's handle to its world, with the collectives that exchange tensors with the other ranks.
///
/// Clones are the same rank. All ranks must make the same calls in the same order; ranks in different calls get
/// [`WorldError::Mismatch`]. Every call waits at most the world's [deadline](crate::World::deadline).
///
/// Dropping the last clone ends the rank: other ranks that still call get an error that names it. If its thread is
/// panicking at that point, the error says so.
///
/// The default is a world of one rank, in which every call returns at once.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_world::World;
///
/// let ranks = World::threads(2).join()?;
/// let sums = std::thread::scope(|scope| {
///     let threads = ranks.into_iter().map(|rank| {
///         scope.spawn(move || {
///             let mine = Tensor::<1>::from_data([1.0, rank.rank() as f32], &Device::flex());
///             rank.all_reduce(mine).map(|sum| sum.into_data())
///         })
///     });
///     let threads: Vec<_> = threads.collect();
///     threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
/// });
/// for sum in sums {
///     assert_eq!(sum?.as_slice::<f32>().unwrap(), [2.0, 1.0]);
/// }
/// # Ok::<(), firebrick_world::WorldError>(())
/// ```
#[derive(Clone)]
pub struct Communicator(Arc<Member>);

struct Member {
    seat: Arc<Seat>,
    /// Number of exchanges so far.
    calls: AtomicU64,
    device_collectives: Option<DeviceCollectives>,
    /// Why the devices do not exchange by themselves.
    through_host: Option<String>,
    life: Arc<Life>,
}

/// A rank's time in the world, as a member of whatever groups.
struct Life {
    exchange: Arc<Exchange>,
    rank: usize,
    /// Number of groups so far.
    groups: AtomicU64,
    /// The end of the last collective between devices that has begun.
    last_turn: Mutex<Option<Receiver<()>>>,
}

impl Drop for Life {
    fn drop(&mut self) {
        let Self { exchange, rank, .. } = self;
        if std::thread::panicking() {
            let (rank, call) = (*rank, exchange.place(*rank));
            exchange.fail(WorldError::Rank { rank, call, reason: "panicked".to_string() });
        }
        exchange.end(*rank);
    }
}

impl Default for Communicator {
    fn default() -> Self {
        Self::solo()
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, to: &mut fmt::Formatter) -> fmt::Result {
        write!(to, "Communicator(rank {} of {})", self.rank(), self.size())
    }
}

impl Communicator {
    /// Creates the only rank of a world of one.
    pub fn solo() -> Self {
        // In a world of one no call waits, so the deadline never passes.
        Self::of(Arc::new(Exchange::new(1, 0..1, Duration::MAX)), 0)
    }

    /// Creates the first rank of a world of `ranks` whose other ranks do not exist: they answer each call with what this
    /// rank sends to itself. The results are wrong, but this rank holds and sends as much as in a real world. What
    /// it has begun happens when it waits for it, so that it holds each buffer as long as it ever may.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use firebrick_world::Communicator;
    ///
    /// let first_of_four = Communicator::rehearsal(4);
    /// let sum = first_of_four.all_reduce(Tensor::<1>::ones([8], &Device::flex()))?;
    /// assert_eq!(sum.dims(), [8]);
    /// assert_eq!(first_of_four.traffic().tensors().elements, 2 * 8 * 3 / 4);
    /// # Ok::<(), firebrick_world::WorldError>(())
    /// ```
    pub fn rehearsal(ranks: usize) -> Self {
        Self::of(Arc::new(Exchange::rehearsal(ranks.max(1))), 0)
    }

    pub(super) fn of(exchange: Arc<Exchange>, rank: usize) -> Self {
        let (groups, last_turn) = (AtomicU64::new(1), Mutex::new(None));
        let life = Arc::new(Life { exchange: exchange.clone(), rank, groups, last_turn });
        Self::seated(Seat::new(exchange, rank), None, life)
    }

    fn seated(seat: Seat, device_collectives: Option<DeviceCollectives>, life: Arc<Life>) -> Self {
        let (seat, calls) = (Arc::new(seat), AtomicU64::new(0));
        Self(Arc::new(Member { seat, calls, device_collectives, through_host: None, life }))
    }

    /// Splits the ranks into groups: returns this rank's handle to those with the same `group(rank)` as its own, numbered in
    /// the same order. All ranks make this call in the same order with the same groups; nothing is exchanged.
    ///
    /// Collectives of several groups may be in flight together. If a rank fails or ends, all groups end, since they are one
    /// world, and errors name its number in the world. Where NCCL serves all ranks, it serves a group too; a program's
    /// own [collectives](DeviceCollectives::new) are those of all ranks, so that a group goes through host memory.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use firebrick_world::World;
    ///
    /// let ranks = World::threads(4).join()?.into_iter().map(|rank| {
    ///     std::thread::spawn(move || {
    ///         let pair = rank.split(|rank| rank / 2);
    ///         let number = Tensor::<1>::from_data([rank.rank() as f32], &Device::flex());
    ///         pair.all_reduce(number).map(|sum| sum.into_scalar::<f32>())
    ///     })
    /// });
    /// let sums: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect();
    /// assert_eq!(sums, [Ok(1.0), Ok(1.0), Ok(5.0), Ok(5.0)]);
    /// # Ok::<(), firebrick_world::WorldError>(())
    /// ```
    pub fn split(&self, group: impl Fn(usize) -> usize) -> Self {
        let own = group(self.rank());
        let places: Vec<_> = (0..self.size()).filter(|rank| group(*rank) == own).collect();
        let members = places.iter().map(|place| self.seat().group.members[*place]).collect();
        let number = self.0.life.groups.fetch_add(1, Ordering::Relaxed);
        let between = self.device_collectives().and_then(DeviceCollectives::of_group);
        Self::seated(self.seat().among(Group { number, members }), between, self.0.life.clone())
    }

    /// Exchanges between the ranks' devices by `collectives`, in place of [NCCL](crate::World::on), or through host memory
    /// if they are `None`. Every rank needs the same, set before its communicator is cloned: later, this has no effect.
    pub fn between_devices(mut self, collectives: Option<DeviceCollectives>) -> Self {
        if let Some(member) = Arc::get_mut(&mut self.0) {
            member.device_collectives = collectives;
        }
        self
    }

    /// Returns whether there are other ranks, and tensors of a dtype go between them and this rank's `device` without passing
    /// through host memory. That takes [NCCL](crate::World::on) or a program's own [collectives](DeviceCollectives::new),
    /// which serve f32, bf16 and f16.
    ///
    /// ```
    /// use burn::tensor::{DType, Device};
    /// use firebrick_world::World;
    ///
    /// let ranks = World::threads(2).join()?;
    /// // On the CPU, ranks exchange through host memory.
    /// assert!(!ranks[0].exchanges_on(&Device::flex(), DType::F32));
    /// # Ok::<(), firebrick_world::WorldError>(())
    /// ```
    pub fn exchanges_on(&self, device: &Device, dtype: DType) -> bool {
        self.size() > 1 && self.exchanging(device, &[PartShape::flat(0, dtype)]).is_some()
    }

    /// Returns what exchanges such parts, on this rank's `device`, without the host.
    pub(crate) fn exchanging(&self, device: &Device, like: &[PartShape]) -> Option<&DeviceCollectives> {
        let own = self.device_collectives()?;
        (DeviceCollectives::takes(like) && own.is_of(self.rank(), device)).then_some(own)
    }

    /// Notes why the ranks' devices do not exchange by themselves, before its communicator is cloned.
    pub(crate) fn through_host_because(mut self, why: &str) -> Self {
        if let Some(member) = Arc::get_mut(&mut self.0) {
            member.through_host = Some(why.to_string());
        }
        self
    }

    /// Returns why tensors pass through host memory, if the world's [devices](crate::World::on) could exchange them:
    /// for example because NCCL is not installed.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use firebrick_world::World;
    ///
    /// let rank = World::threads(2).on(vec![Device::flex()]).nccl(false).join()?.remove(0);
    /// assert_eq!(rank.through_host(), Some("NCCL is turned off"));
    /// # Ok::<(), firebrick_world::WorldError>(())
    /// ```
    pub fn through_host(&self) -> Option<&str> {
        self.0.through_host.as_deref()
    }

    /// Returns what exchanges between the ranks' devices, if anything does.
    pub(crate) fn device_collectives(&self) -> Option<&DeviceCollectives> {
        self.0.device_collectives.as_ref()
    }

    /// Sets what threads that work for this rank do around their work, for example to put their memory on the rank's
    /// account. The first setting counts, for all clones.
    ///
    /// ```
    /// use firebrick_world::World;
    ///
    /// let rank = World::threads(1).join()?.remove(0);
    /// rank.work_within(|work| {
    ///     // Before the work.
    ///     work();
    /// });
    /// # Ok::<(), firebrick_world::WorldError>(())
    /// ```
    pub fn work_within(&self, around: impl Fn(&mut dyn FnMut()) + Send + Sync + 'static) {
        // A second setting would be that of another owner of the same rank.
        let _ = self.seat().around.set(Arc::new(around));
    }

    /// Takes a turn among this rank's collectives between devices: returns the end of the one before, if there is one, and
    /// what to drop at the end of this one. Those that run side by side could meet others on other ranks.
    pub(crate) fn turn(&self) -> (Option<Receiver<()>>, Sender<()>) {
        let (end, ended) = channel();
        let before = self.0.life.last_turn.lock().unwrap_or_else(PoisonError::into_inner).replace(ended);
        (before, end)
    }

    /// Returns this rank's place in the exchange, for threads that work for it.
    pub(crate) fn seat(&self) -> &Arc<Seat> {
        &self.0.seat
    }

    /// Returns this rank's index in the world, or in its [group](Self::split), from 0.
    pub fn rank(&self) -> usize {
        self.seat().rank
    }

    /// Returns the number of ranks in the world, or in the group.
    pub fn size(&self) -> usize {
        self.seat().size()
    }

    /// Returns this rank's index among those of its process, from 0.
    pub fn local_rank(&self) -> usize {
        self.seat().exchange.local(self.seat().world_rank)
    }

    /// Waits until all ranks have called it.
    ///
    /// # Errors
    ///
    /// [`WorldError`] if a rank fails, ends, makes a different call, or is late.
    pub fn barrier(&self) -> Result<(), WorldError> {
        let call = self.open(Call::new(Collective::Barrier, "", vec![]));
        self.exchange(&call, vec![vec![]; self.size()]).map(|_| ())
    }

    /// Gathers each rank's numbers, by rank: for counts, flags and norms. Ranks may pass different amounts of
    /// numbers. `what` names them in errors. The numbers arrive bit-exact and do not count as tensor traffic.
    ///
    /// # Errors
    ///
    /// [`WorldError`] if a rank fails, ends, makes a different call, or is late.
    ///
    /// ```
    /// use firebrick_world::Communicator;
    ///
    /// assert_eq!(Communicator::solo().numbers("norm", &[0.5, 2.0])?, [[0.5, 2.0]]);
    /// # Ok::<(), firebrick_world::WorldError>(())
    /// ```
    pub fn numbers(&self, what: &str, mine: &[f64]) -> Result<Vec<Vec<f64>>, WorldError> {
        let bytes = mine.iter().flat_map(|number| number.to_le_bytes()).collect();
        let all = self.gather_to_all(what, Piece { bytes, element: size_of::<f64>() })?;
        let numbers = all.iter().map(|bytes| bytes.as_chunks().0.iter().copied().map(f64::from_le_bytes));
        Ok(numbers.map(Iterator::collect).collect())
    }

    /// Gathers each rank's bytes, by rank: for records and texts. Ranks may pass different amounts of bytes. `what`
    /// names them in errors. The bytes count as [`Collective::Scalars`], not as tensor traffic.
    ///
    /// # Errors
    ///
    /// [`WorldError`] if a rank fails, ends, makes a different call, or is late.
    ///
    /// ```
    /// use firebrick_world::Communicator;
    ///
    /// assert_eq!(Communicator::solo().all_gather_bytes("names", b"rank 0")?, [b"rank 0"]);
    /// # Ok::<(), firebrick_world::WorldError>(())
    /// ```
    pub fn all_gather_bytes(&self, what: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, WorldError> {
        let piece = Piece { bytes: Bytes::copy_from_slice(mine), element: 1 };
        Ok(self.gather_to_all(what, piece)?.into_iter().map(Vec::from).collect())
    }

    /// Sends every rank this rank's piece, and returns the bytes of each rank's.
    fn gather_to_all(&self, what: &str, piece: Piece) -> Result<Vec<Bytes>, WorldError> {
        let call = self.open(Call::new(Collective::Scalars, what, vec![]));
        let arrived = self.exchange(&call, vec![vec![Some(piece)]; self.size()])?;
        let bytes = |piece: Option<Piece>| piece.map(|piece| piece.bytes).unwrap_or_default();
        Ok(arrived
            .into_iter()
            .map(|pieces| pieces.into_iter().next().map(bytes).unwrap_or_default())
            .collect())
    }

    /// Returns what this rank has exchanged with the others of the world so far.
    pub fn traffic(&self) -> Traffic {
        self.seat().exchange.traffic(self.seat().world_rank)
    }

    /// Returns the seconds that this rank has waited for each rank of the world so far. A rank that stands out on all others is
    /// slow. One call waits for several ranks at once, so the sum may exceed the elapsed time.
    pub fn lateness(&self) -> Vec<f64> {
        self.seat().lateness()
    }

    /// Returns the timeline of this rank, which all its groups share.
    pub fn timeline(&self) -> &Timeline {
        &self.seat().timeline
    }

    /// Records that the rank waits for a call until the span is dropped.
    pub(crate) fn waits_for(&self, call: &Call) -> Span {
        self.timeline().span(Activity::Wait(call.kind), || call.what.clone())
    }

    /// Tells all other ranks that this rank stops, and why. Every rank's current call, or its next one, and all later
    /// calls return [`WorldError::Rank`]. If several ranks fail, the error reports the first failure.
    pub fn fail(&self, reason: &str) {
        self.seat().fail(reason);
    }

    /// Returns the error that ended the world, if one did.
    pub fn failure(&self) -> Option<WorldError> {
        self.seat().exchange.failure(self.seat().world_rank)
    }

    /// Counts a call.
    pub(super) fn open(&self, call: Call) -> Arc<Call> {
        self.seat().exchange.count(self.seat().world_rank, call.kind);
        Arc::new(call)
    }

    /// Returns the sequence number of this rank's next exchange.
    pub(super) fn number(&self) -> u64 {
        self.seat().group.sequence(self.0.calls.fetch_add(1, Ordering::Relaxed))
    }

    /// Sends `pieces[to]` to each rank and waits for all ranks'.
    pub(super) fn exchange(
        &self,
        call: &Arc<Call>,
        pieces: Vec<Vec<Option<Piece>>>,
    ) -> Result<Vec<Vec<Option<Piece>>>, WorldError> {
        let _waits = self.waits_for(call);
        self.seat().exchanged(self.number(), call, pieces)
    }

    pub(super) fn checked_root(&self, call: Call, root: usize) -> Result<Call, WorldError> {
        let size = self.size();
        if root < size {
            return Ok(call.rooted(root));
        }
        Err(WorldError::Root { call: call.to_string(), root, size })
    }

    /// Rejects a part whose first axis is not divisible by the number of ranks.
    pub(super) fn check_divisible(&self, call: &Call, part: &PartShape) -> Result<(), WorldError> {
        match part.shape.first() {
            Some(first) if first.is_multiple_of(self.size()) => Ok(()),
            _ => Err(WorldError::Shape {
                call: call.to_string(),
                expected: format!("a first axis that {} ranks divide", self.size()),
                found: format!("{:?}", part.shape),
            }),
        }
    }
}
