//! Sums that have begun: start in the backward pass, wait at the update.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use burn::tensor::{Device, FloatDType, Tensor, TensorData};

use crate::call::{Call, name};
use crate::flat::{Reading, put};
use crate::host::is_host;
use crate::on_devices::OnDevices;
use crate::{Collective, Communicator, PartShape, WorldError, seat, sum};

/// A sum in flight.
///
/// Several may be in flight, and you may wait for them in any order.
#[must_use = "the result arrives only with `wait`"]
pub struct Summing {
    world: Communicator,
    call: Arc<Call>,
    to: Device,
    state: Waiting,
}

enum Waiting {
    /// A world of one, with nobody to wait for.
    Alone(Vec<Option<Tensor<1>>>),
    OnHost(Receiver<Sums>),
    /// In a [rehearsal](Communicator::rehearsal), in which the others have answered.
    Rehearsed(Sums),
    OnDevices(OnDevices),
}

/// Sums in host memory.
type Sums = Result<Vec<Option<TensorData>>, WorldError>;

impl Communicator {
    /// Begins to sum flat parts over all ranks, of which this rank gets its chunk: the elements are split into one chunk
    /// per rank. Returns at once; the exchange proceeds while this rank computes. The sums arrive on the device `to`.
    ///
    /// `what` names the parts in errors. A part that is `None` adds and sends nothing; if it is `None` on all ranks, so is
    /// the sum. On the wire a part has the dtype of `like`, to which this call casts it. The sum is taken in rank order
    /// and rounded once, to [`PartShape::sum`], so its bits do not depend on where the ranks run. Each rank sends
    /// (N-1)/N of its elements.
    ///
    /// Where the ranks' devices [exchange](crate::World::on) by themselves, no part passes through host memory, and what is
    /// summed travels in f32. Elsewhere the parts of a dtype are read as one buffer, and the sums are written as one.
    ///
    /// # Errors
    ///
    /// [`WorldError::Shape`] if a part does not match `like` or its elements are not divisible by the number of ranks;
    /// [`WorldError::Dtype`] if it is not a float; and an error if the world is over.
    ///
    /// ```
    /// use burn::tensor::{DType, Device, Tensor};
    /// use firebrick_world::{Communicator, PartShape};
    ///
    /// let device = Device::flex();
    /// let part = Tensor::<1>::from_data([1.5, 2.0], &device);
    /// let like = [PartShape { sum: DType::F32, ..PartShape::flat(2, DType::BF16) }];
    /// let sums = Communicator::solo().begin_reduce_scatter("head", vec![Some(part.clone())], &like, &device)?;
    /// assert_eq!(sums.wait()?[0].as_ref().unwrap().to_data(), part.to_data());
    /// # Ok::<(), firebrick_world::WorldError>(())
    /// ```
    pub fn begin_reduce_scatter(
        &self,
        what: &str,
        parts: Vec<Option<Tensor<1>>>,
        like: &[PartShape],
        to: &Device,
    ) -> Result<Summing, WorldError> {
        let call = Call::new(Collective::ReduceScatter, what, like.to_vec());
        for part in like {
            self.check_divisible(&call, part)?;
        }
        self.begin_sum(call, parts, to)
    }

    /// Begins to sum flat parts over all ranks, of which each rank gets the sums, like
    /// [`begin_reduce_scatter`](Self::begin_reduce_scatter) for parts of any length: each rank sums a chunk of the
    /// elements and sends the sum to all others. A rank sends 2(N-1)/N of the elements, and all ranks get the same bits.
    ///
    /// # Errors
    ///
    /// [`WorldError::Shape`] if a part does not match `like`; [`WorldError::Dtype`] if it is not a float; and an error if
    /// the world is over.
    pub fn begin_all_reduce(
        &self,
        what: &str,
        parts: Vec<Option<Tensor<1>>>,
        like: &[PartShape],
        to: &Device,
    ) -> Result<Summing, WorldError> {
        self.begin_sum(Call::new(Collective::AllReduce, what, like.to_vec()), parts, to)
    }

    fn begin_sum(
        &self,
        call: Call,
        parts: Vec<Option<Tensor<1>>>,
        to: &Device,
    ) -> Result<Summing, WorldError> {
        check(&call, &parts)?;
        let parts = parts.into_iter().zip(&call.parts).map(|(part, like)| {
            let part = part?.inner();
            Some(if part.dtype() == like.dtype { part } else { part.cast(FloatDType::from(like.dtype)) })
        });
        let parts: Vec<_> = parts.collect();
        let scatters = call.kind == Collective::ReduceScatter;
        let call = self.open(call);
        let between = self.exchanging(to, &call.parts);
        let state = if self.size() == 1 {
            let own = parts.into_iter().zip(&call.parts).map(|(part, like)| {
                let part = part?.to_device(to);
                Some(if like.dtype == like.sum { part } else { part.cast(FloatDType::from(like.sum)) })
            });
            Waiting::Alone(own.collect())
        } else if let Some(between) = between {
            Waiting::OnDevices(self.begin_on_devices(between, &call, parts))
        } else {
            let (first, second) = (self.number(), (!scatters).then(|| self.number()));
            let is_rehearsal = self.seat().exchange.is_rehearsal();
            let at_once = parts.iter().flatten().all(|part| is_host(&part.device()));
            let (reading, seat, sent) = (Reading::begin(parts), self.seat().clone(), call.clone());
            let send = move || {
                let pieces = reading.wait().map_err(|error| sent.unread(error))?;
                seat.send_chunks(first, &sent, pieces)
            };
            // Host memory is lent, which takes no time. Sums that are sent here leave in the order of the calls.
            let send: Box<dyn FnOnce() -> Result<(), WorldError> + Send> = match at_once {
                true => {
                    let sent = send();
                    Box::new(|| sent)
                }
                false => Box::new(send),
            };
            let (seat, call) = (self.seat().clone(), call.clone());
            let work = move || {
                send()?;
                let chunks = seat.sum_chunks(first, &call)?;
                match second {
                    None => Ok(chunks),
                    Some(second) => seat.share_chunks(second, &call, chunks),
                }
            };
            let seat = self.seat().clone();
            let work = move || {
                work().inspect_err(|error| {
                    if let WorldError::Read { .. } = error {
                        seat.fail(&error.to_string())
                    }
                })
            };
            match is_rehearsal {
                true => Waiting::Rehearsed(work()),
                false => Waiting::OnHost(seat::start(self.seat(), "its part of a sum", work)),
            }
        };
        Ok(Summing { world: self.clone(), call, to: to.clone(), state })
    }
}

impl fmt::Debug for Summing {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "Summing({})", self.call)
    }
}

impl Summing {
    /// Waits for the sums, each flat.
    ///
    /// # Errors
    ///
    /// [`WorldError`] if a rank fails, ends, makes a different call, or is late, or if its device has failed.
    pub fn wait(self) -> Result<Vec<Option<Tensor<1>>>, WorldError> {
        let _waits = self.world.waits_for(&self.call);
        match self.state {
            Waiting::Alone(sums) => Ok(sums),
            Waiting::OnDevices(sum) => sum.wait(),
            Waiting::Rehearsed(sums) => Ok(put(sums?, &self.to)),
            Waiting::OnHost(sums) => match sums.recv() {
                Ok(sums) => Ok(put(sums?, &self.to)),
                Err(_) => Err(self.world.failure().unwrap_or_else(|| WorldError::Rank {
                    rank: self.world.seat().world_rank,
                    call: self.call.to_string(),
                    reason: "panicked".into(),
                })),
            },
        }
    }
}

/// Rejects parts that do not match their announcement or cannot be summed.
fn check(call: &Call, parts: &[Option<Tensor<1>>]) -> Result<(), WorldError> {
    let shape = |expected, found| WorldError::Shape { call: call.to_string(), expected, found };
    if parts.len() != call.parts.len() {
        return Err(shape(format!("{} parts", call.parts.len()), format!("{} parts", parts.len())));
    }
    for (at, (part, like)) in parts.iter().zip(&call.parts).enumerate() {
        if let Some(dtype) = [like.dtype, like.sum].into_iter().find(|dtype| !sum::sums(*dtype)) {
            return Err(WorldError::Dtype { call: call.to_string(), found: name(dtype) });
        }
        if let Some(part) = part
            && part.dims()[..] != like.shape
        {
            return Err(shape(format!("part {at} to be {:?}", like.shape), format!("{:?}", part.dims())));
        }
    }
    Ok(())
}
