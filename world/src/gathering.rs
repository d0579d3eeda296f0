//! Asynchronous all-gathers: start early, wait later.

use std::sync::Arc;

use burn::tensor::TensorData;

use crate::call::Call;
use crate::collectives::{check_axes, concatenated, piece};
use crate::{Communicator, Kind, PartShape, WorldError};

/// An all-gather in flight: this rank has sent its shards, and the others' may still be on their way.
///
/// Several may be in flight, and you may wait for them in any order. Dropping one gives it up.
#[must_use = "the result arrives only with `wait`"]
#[derive(Debug)]
pub struct Gathering {
    communicator: Communicator,
    call: Arc<Call>,
    state: Waiting,
}

#[derive(Debug)]
enum Waiting {
    /// A world of one, with nobody to wait for.
    Alone(Vec<TensorData>),
    Exchange(u64),
    Over,
}

impl Communicator {
    /// Starts an all-gather of each rank's shards and returns at once; the exchange proceeds while this rank
    /// computes. `what` names the shards in errors. All ranks' shards have the same shapes and dtypes.
    ///
    /// # Errors
    ///
    /// [`WorldError::Shape`] for a shard without axes; and an error if the world is over.
    ///
    /// ```
    /// use burn::tensor::TensorData;
    /// use firebrick_world::Communicator;
    ///
    /// let next = Communicator::solo().start_all_gather("block 1", vec![TensorData::from([1.0f32])])?;
    /// // Block 0 computes here.
    /// assert_eq!(next.wait()?, [TensorData::from([1.0f32])]);
    /// # Ok::<(), firebrick_world::WorldError>(())
    /// ```
    pub fn start_all_gather(&self, what: &str, shards: Vec<TensorData>) -> Result<Gathering, WorldError> {
        let call = Call::new(Kind::AllGather, what, shards.iter().map(PartShape::of).collect());
        check_axes(&call)?;
        let call = self.open(call);
        let communicator = self.clone();
        if self.size() == 1 {
            return Ok(Gathering { communicator, call, state: Waiting::Alone(shards) });
        }
        let pieces: Vec<_> = shards.into_iter().map(|shard| Some(piece(shard))).collect();
        let sequence = self.post(&call, vec![pieces; self.size()])?;
        Ok(Gathering { communicator, call, state: Waiting::Exchange(sequence) })
    }
}

impl Gathering {
    /// Waits for the gathered parts: each rank's shards, concatenated along the first axis in rank order.
    ///
    /// # Errors
    ///
    /// [`WorldError`] if a rank fails, ends, makes a different call, or is late. The deadline starts with this call.
    pub fn wait(mut self) -> Result<Vec<TensorData>, WorldError> {
        match std::mem::replace(&mut self.state, Waiting::Over) {
            Waiting::Alone(shards) => Ok(shards),
            Waiting::Exchange(sequence) => {
                Ok(concatenated(&self.call, self.communicator.complete(&self.call, sequence)?))
            }
            Waiting::Over => Ok(vec![]),
        }
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        if let Waiting::Exchange(sequence) = self.state {
            self.communicator.abandon(sequence);
        }
    }
}
