//! Gathered parts on their way to a GPU, while it computes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use burn::tensor::{DType, Tensor};
use firebrick_kernels::Upload;

use crate::call::Call;
use crate::gathering::{Waiting, there};
use crate::host::host_device;
use crate::seat::Seat;
use crate::{Collective, Communicator, Gathering, WorldError};

/// The parts of some gathers on their way to a GPU: once all have arrived in host memory, they are copied together, in the
/// device's [queue of uploads](Upload).
///
/// Another thread waits for the other ranks. Dropping this gives the gathers up.
#[must_use = "the result arrives only with `wait`"]
pub struct Uploading {
    world: Communicator,
    call: Arc<Call>,
    /// `None` once it has been awaited.
    upload: Option<Upload>,
    /// When all parts of each rank had arrived.
    arrivals: Receiver<Result<Vec<Instant>, WorldError>>,
    given_up: Arc<AtomicBool>,
}

/// A gather through host memory that has begun.
struct HostGather {
    seat: Arc<Seat>,
    sequence: u64,
    call: Arc<Call>,
}

impl Gathering {
    /// Copies the parts of gathers beside what the device computes, instead of when
    /// [`wait`](Self::wait) is called and in the queue that computes.
    ///
    /// They take their memory on the device now, and the deadline starts now. So call this for what is read next, not for all
    /// of a model.
    ///
    /// # Errors
    ///
    /// The gathers as they were, if there are none, if they are of several communicators or go to several devices, if they do not
    /// pass through host memory or stay there, or if the device takes no such [`Upload`].
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use firebrick_world::{Communicator, Gathering};
    ///
    /// let (rank, device) = (Communicator::solo(), Device::flex());
    /// let gather = rank.begin_all_gather("block 1", vec![Tensor::ones([2], &device)], &device)?;
    /// // On the CPU, they stay.
    /// let gathers = Gathering::upload(vec![gather]).unwrap_err();
    /// # assert_eq!(gathers.len(), 1);
    /// # Ok::<(), firebrick_world::WorldError>(())
    /// ```
    pub fn upload(mut gathers: Vec<Self>) -> Result<Uploading, Vec<Self>> {
        let begun: Option<Vec<_>> = gathers.iter().map(HostGather::of).collect();
        let (Some(begun), Some(first)) = (begun, gathers.first()) else { return Err(gathers) };
        let (world, call, to) = (first.world.clone(), first.call.clone(), first.to.clone());
        let alike = |gather: &Self| gather.to == to && Arc::ptr_eq(gather.world.seat(), world.seat());
        if !gathers.iter().all(alike) {
            return Err(gathers);
        }
        let kinds: Vec<_> = begun.iter().flat_map(HostGather::kinds).collect();
        let zeros = kinds.clone();
        let (given_up, (tell, arrivals)) = (Arc::new(AtomicBool::new(false)), channel());
        let is_given_up = given_up.clone();
        let read = move || {
            let (found, parts) = match arrived(begun, &is_given_up) {
                Ok((parts, arrivals)) => (Ok(arrivals), parts),
                Err(error) => {
                    // `wait` returns the error, and nobody sees the zeros.
                    let zero = |(elements, dtype)| Tensor::zeros([elements], (&host_device(), dtype));
                    (Err(error), zeros.into_iter().map(zero).collect())
                }
            };
            let _ = tell.send(found);
            parts
        };
        let Ok(upload) = Upload::begin(kinds, &to, read) else { return Err(gathers) };
        gathers.iter_mut().for_each(|gather| gather.state = Waiting::Over);
        Ok(Uploading { world, call, upload: Some(upload), arrivals, given_up })
    }
}

impl HostGather {
    /// Returns what waits for the other ranks, if a gather goes through host memory. In a rehearsal nothing happens before a rank waits.
    fn of(gather: &Gathering) -> Option<Self> {
        let (seat, is_gather) = (gather.world.seat().clone(), gather.call.kind == Collective::AllGather);
        match gather.state {
            Waiting::Exchange(sequence) if is_gather && !seat.exchange.is_rehearsal() => {
                Some(Self { seat, sequence, call: gather.call.clone() })
            }
            _ => None,
        }
    }

    /// Returns the elements and the dtype of each gathered part.
    fn kinds(&self) -> impl Iterator<Item = (usize, DType)> {
        self.call.parts.iter().map(|part| (part.elements() * self.seat.size(), part.dtype))
    }
}

/// Waits for the other ranks. Returns the parts in host memory, and when all of each rank's were there.
fn arrived(
    begun: Vec<HostGather>,
    given_up: &AtomicBool,
) -> Result<(Vec<Tensor<1>>, Vec<Instant>), WorldError> {
    let (mut parts, mut last) = (Vec::new(), Vec::<Instant>::new());
    let mut begun = begun.into_iter();
    while let Some(HostGather { seat, sequence, call }) = begun.next() {
        let mut found = None;
        seat.within(&mut || {
            let arrived = seat.arrived(sequence, &call, given_up);
            found = Some(arrived.map(|arrived| (there(&call, arrived.pieces, &host_device()), arrived.at)));
        });
        match found.unwrap_or_else(|| Err(call.unread("the rank has not done this work"))) {
            Ok((some, at)) => {
                parts.extend(some);
                last.resize(at.len(), at[0]);
                last.iter_mut().zip(at).for_each(|(last, at)| *last = at.max(*last));
            }
            Err(error) => {
                seat.abandon(sequence);
                begun.for_each(|HostGather { seat, sequence, .. }| seat.abandon(sequence));
                return Err(error);
            }
        }
    }
    Ok((parts, last))
}

impl Uploading {
    /// Waits for the gathered parts, in the order of the gathers: each rank's shards, concatenated in rank order.
    ///
    /// # Errors
    ///
    /// [`WorldError`] if a rank fails, ends, makes a different call, or is late, or if the device has failed.
    pub fn wait(mut self) -> Result<Vec<Tensor<1>>, WorldError> {
        let (_waits, began) = (self.world.waits_for(&self.call), Instant::now());
        let upload = self.upload.take().expect("it is awaited once");
        let parts = upload.wait().map_err(|error| self.call.unread(error));
        // Sent before the copy was queued, unless the upload has failed.
        if let Ok(arrivals) = self.arrivals.try_recv() {
            self.world.seat().waited(began, &arrivals?);
        }
        parts
    }
}

impl Drop for Uploading {
    fn drop(&mut self) {
        if self.upload.is_some() {
            self.given_up.store(true, Ordering::Relaxed);
            self.world.seat().exchange.wake(self.world.seat().world_rank);
        }
    }
}

impl fmt::Debug for Uploading {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "Uploading({})", self.call)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use burn::tensor::{FloatDType, TensorData};

    use super::*;
    use crate::World;
    use crate::testing::{device, gathered, run};

    /// Begins to gather a rank's shards: of odd lengths, and of two dtypes.
    fn begin(rank: &Communicator, round: usize) -> Result<Gathering, WorldError> {
        let narrow =
            if device().supports_dtype(FloatDType::BF16) { FloatDType::BF16 } else { FloatDType::F16 };
        let of = |elements: usize| {
            let value = |at: usize| (rank.rank() * 50 + round * 10 + at % 10) as f32;
            let values: Vec<f32> = (0..elements).map(value).collect();
            Tensor::<1>::from_data(TensorData::new(values, [elements]), &device())
        };
        let shards = vec![of(3), of(5).cast(narrow), of(7001), of(1).cast(narrow)];
        rank.begin_all_gather("a block", shards, &device())
    }

    /// Waits for gathers, uploaded together where there is a GPU.
    fn uploaded(gathers: Vec<Gathering>) -> Result<Vec<TensorData>, WorldError> {
        let through_host = gathers.iter().all(|gather| gather.world.size() > 1);
        let parts = match Gathering::upload(gathers) {
            Ok(uploading) => uploading.wait()?,
            Err(gathers) => {
                assert!(device() == host_device() || !through_host);
                gathers.into_iter().map(Gathering::wait).collect::<Result<Vec<_>, _>>()?.concat()
            }
        };
        assert!(parts.iter().all(|part| part.device() == device()));
        Ok(gathered(parts))
    }

    #[test]
    fn what_is_uploaded_is_what_is_copied_at_the_end() {
        for ranks in [1, 2, 3] {
            let found = run(World::threads(ranks), |rank| {
                let plain = |round| begin(&rank, round)?.wait().map(gathered);
                let received = || rank.traffic().tensors().received;
                let expected = [plain(0)?, plain(1)?].concat();
                let bytes = received();
                for _ in 0..5 {
                    let (first, last) = (begin(&rank, 0)?, begin(&rank, 1)?);
                    drop(Gathering::upload(vec![begin(&rank, 2)?, begin(&rank, 3)?]));
                    assert_eq!(uploaded(vec![first, last])?, expected);
                }
                rank.barrier()?;
                assert_eq!(received() > 0, ranks > 1);
                // What was given up counts only where the messages were there before.
                assert!((6 * bytes..=11 * bytes).contains(&received()));
                Ok(())
            });
            found.into_iter().for_each(|found| found.unwrap());
        }
    }

    #[test]
    fn a_rank_that_is_lost_is_an_error_instead_of_zeros() {
        for fails in [true, false] {
            let found = run(World::threads(2), |rank| {
                rank.barrier()?;
                if rank.rank() == 0 {
                    return uploaded(vec![begin(&rank, 0)?, begin(&rank, 1)?]);
                }
                if fails {
                    rank.fail("its disk is full");
                }
                Ok(Vec::new())
            });
            let error = found[0].clone().unwrap_err().to_string();
            let expected = if fails { "its disk is full" } else { "has ended while others continue" };
            assert!(error.contains(expected) && error.contains("rank 1"), "{error}");
        }
    }

    #[test]
    fn gathers_of_several_ranks_are_not_uploaded_together() {
        let ranks = World::threads(2).join().unwrap();
        let gathers = ranks.iter().map(|rank| begin(rank, 0).unwrap()).collect();
        let gathers = Gathering::upload(gathers).unwrap_err();
        let found = gathers.into_iter().map(|gather| gather.wait().map(gathered).unwrap());
        let found: Vec<_> = found.collect();
        assert_eq!(found[0], found[1]);
    }

    #[test]
    fn what_is_given_up_misses_no_deadline() {
        let limit = Duration::from_millis(400);
        let found = run(World::threads(2).deadline(limit), |rank| {
            if rank.rank() == 1 {
                thread::sleep(limit * 3 / 2);
            }
            drop(Gathering::upload(vec![begin(&rank, 0)?]));
            if rank.rank() == 0 {
                thread::sleep(limit * 3 / 2);
            }
            rank.barrier()
        });
        assert_eq!(found, [Ok(()), Ok(())]);
    }
}
