//! All-gathers and shifts that have begun: start early, wait later.

use std::fmt;
use std::sync::Arc;

use burn::tensor::{Device, Tensor};

use crate::call::Call;
use crate::collectives::concatenated;
use crate::flat::{Reading, moved, put};
use crate::host::is_host;
use crate::message::Piece;
use crate::on_devices::OnDevices;
use crate::{Collective, Communicator, DeviceCollectives, PartShape, WorldError, seat};

/// An all-gather or a shift in flight: this rank has sent its shards, or is reading them, and the others' may still be on their
/// way.
///
/// Several may be in flight, and you may wait for them in any order. Dropping one gives it up.
#[must_use = "the result arrives only with `wait`"]
pub struct Gathering {
    pub(crate) world: Communicator,
    pub(crate) call: Arc<Call>,
    pub(crate) to: Device,
    pub(crate) state: Waiting,
}

pub(crate) enum Waiting {
    /// A world of one, with nobody to wait for.
    Alone(Vec<Tensor<1>>),
    Exchange(u64),
    OnDevices(OnDevices),
    Over,
}

impl Communicator {
    /// Begins an all-gather of each rank's flat shards, onto the device `to`, and returns at once; the exchange proceeds
    /// while this rank computes. `what` names the shards in errors. All ranks' shards have the same lengths and dtypes.
    ///
    /// Where the ranks' devices [exchange](crate::World::on) by themselves, no shard passes through host memory. Elsewhere
    /// the shards of a dtype are read as one buffer, and the result is written as one.
    ///
    /// # Errors
    ///
    /// The world is over.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use firebrick_world::Communicator;
    ///
    /// let device = Device::flex();
    /// let shard = Tensor::<1>::from_data([1.0, 2.0], &device);
    /// let next = Communicator::solo().begin_all_gather("block 1", vec![shard.clone()], &device)?;
    /// // Block 0 computes here.
    /// assert_eq!(next.wait()?[0].to_data(), shard.to_data());
    /// # Ok::<(), firebrick_world::WorldError>(())
    /// ```
    pub fn begin_all_gather(
        &self,
        what: &str,
        shards: Vec<Tensor<1>>,
        to: &Device,
    ) -> Result<Gathering, WorldError> {
        self.begin_receiving(Collective::AllGather, what, shards, to)
    }

    /// Begins to hand each rank's flat tensors to the next rank, and those of the last one to the first one, and returns at once:
    /// the step of a ring. `what` names the tensors in errors. All ranks' tensors have the same lengths and dtypes. It goes
    /// between devices as [`begin_all_gather`](Self::begin_all_gather) does, but not by a program's own
    /// [collectives](crate::DeviceCollectives::new).
    ///
    /// # Errors
    ///
    /// The world is over.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use firebrick_world::World;
    ///
    /// let ranks = World::threads(3).join()?.into_iter().map(|rank| {
    ///     std::thread::spawn(move || {
    ///         let device = Device::flex();
    ///         let mine = Tensor::<1>::from_data([rank.rank() as f32], &device);
    ///         let before = rank.begin_shift("a number", vec![mine], &device)?.wait()?;
    ///         Ok::<_, firebrick_world::WorldError>(before[0].clone().into_scalar::<f32>())
    ///     })
    /// });
    /// let found: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect();
    /// assert_eq!(found, [Ok(2.0), Ok(0.0), Ok(1.0)]);
    /// # Ok::<(), firebrick_world::WorldError>(())
    /// ```
    pub fn begin_shift(
        &self,
        what: &str,
        parts: Vec<Tensor<1>>,
        to: &Device,
    ) -> Result<Gathering, WorldError> {
        self.begin_receiving(Collective::Shift, what, parts, to)
    }

    fn begin_receiving(
        &self,
        kind: Collective,
        what: &str,
        shards: Vec<Tensor<1>>,
        to: &Device,
    ) -> Result<Gathering, WorldError> {
        let like: Vec<_> =
            shards.iter().map(|shard| PartShape::flat(shard.dims()[0], shard.dtype())).collect();
        let knows = |between: &&DeviceCollectives| kind != Collective::Shift || between.are_of_nccl();
        let between = self.exchanging(to, &like).filter(knows);
        let call = self.open(Call::new(kind, what, like));
        let state = if self.size() == 1 {
            Waiting::Alone(shards.into_iter().map(|shard| shard.inner().to_device(to)).collect())
        } else if let Some(between) = between {
            // Shards of parameters that are offloaded wait in host memory.
            let shards = match shards.iter().all(|shard| shard.device().inner() == to.clone().inner()) {
                true => shards.into_iter().map(Tensor::inner).collect(),
                false => moved(shards, &to.clone().inner()).map_err(|error| call.unread(error))?,
            };
            Waiting::OnDevices(self.begin_on_devices(between, &call, shards.into_iter().map(Some).collect()))
        } else {
            Waiting::Exchange(self.begin_on_host(&call, shards)?)
        };
        Ok(Gathering { world: self.clone(), call, to: to.clone(), state })
    }

    /// Sends the shards to the ranks that get them: at once from host memory, and once they are read from elsewhere.
    fn begin_on_host(&self, call: &Arc<Call>, shards: Vec<Tensor<1>>) -> Result<u64, WorldError> {
        let sequence = self.number();
        let at_once = shards.iter().all(|shard| is_host(&shard.device()));
        let reading = Reading::begin(shards.into_iter().map(Some).collect());
        let (seat, sent) = (self.seat().clone(), call.clone());
        let send = move || {
            let pieces = reading.wait().map_err(|error| sent.unread(error))?;
            let pieces = match sent.kind {
                Collective::Shift => {
                    let mut of_ranks = vec![vec![]; seat.size()];
                    // A rehearsal answers with what a rank sends to itself.
                    if seat.exchange.is_rehearsal() {
                        of_ranks[seat.rank] = pieces.clone();
                    }
                    of_ranks[(seat.rank + 1) % seat.size()] = pieces;
                    of_ranks
                }
                _ => vec![pieces; seat.size()],
            };
            seat.post(sequence, &sent, pieces)
        };
        if at_once {
            send()?;
        } else {
            let seat = self.seat().clone();
            seat::queue(self.seat(), "its shards could not be read", move || {
                send().inspect_err(|error| seat.fail(&error.to_string()))
            });
        }
        Ok(sequence)
    }
}

impl fmt::Debug for Gathering {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "Gathering({})", self.call)
    }
}

impl Gathering {
    /// Waits for the gathered parts: each rank's shards, concatenated in rank order, or those of the rank before in a shift.
    ///
    /// # Errors
    ///
    /// [`WorldError`] if a rank fails, ends, makes a different call, or is late. The deadline starts with this call.
    pub fn wait(mut self) -> Result<Vec<Tensor<1>>, WorldError> {
        let _waits = self.world.waits_for(&self.call);
        match std::mem::replace(&mut self.state, Waiting::Over) {
            Waiting::Alone(shards) => Ok(shards),
            Waiting::Exchange(sequence) => {
                let (seat, call) = (self.world.seat(), &self.call);
                let mut pieces = seat.complete(sequence, call)?;
                if call.kind == Collective::Shift {
                    pieces = vec![pieces.swap_remove((seat.rank + seat.size() - 1) % seat.size())];
                }
                Ok(there(call, pieces, &self.to))
            }
            Waiting::OnDevices(sum) => Ok(sum.wait()?.into_iter().flatten().collect()),
            Waiting::Over => Ok(vec![]),
        }
    }
}

/// Returns gathered parts on a device.
pub(crate) fn there(call: &Call, arrived: Vec<Vec<Option<Piece>>>, to: &Device) -> Vec<Tensor<1>> {
    put(concatenated(call, arrived).into_iter().map(Some).collect(), to).into_iter().flatten().collect()
}

impl Drop for Gathering {
    fn drop(&mut self) {
        match &self.state {
            Waiting::Exchange(sequence) => self.world.seat().abandon(*sequence),
            Waiting::OnDevices(gather) => gather.abandon(),
            Waiting::Alone(_) | Waiting::Over => {}
        }
    }
}
