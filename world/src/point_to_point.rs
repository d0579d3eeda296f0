//! Messages from one rank to another, which no other rank waits for.

use std::sync::Arc;

use burn::tensor::TensorData;

use crate::call::Call;
use crate::collectives::piece;
use crate::host::joined;
use crate::{Collective, Communicator, PartShape, WorldError};

impl Communicator {
    /// Sends parts to the other rank of a [group](Self::split) of two, and returns at once: they wait there until that rank
    /// [receives](Self::receive) them. `what` names the parts in errors.
    ///
    /// Both ranks of the group make the same calls in the same order, one by `send` and the other by `receive`. A pair that
    /// sends in both directions at its own pace takes a group for each.
    ///
    /// # Errors
    ///
    /// [`WorldError::Shape`] if the group has another number of ranks than two, or the world is over.
    ///
    /// ```
    /// use burn::tensor::TensorData;
    /// use firebrick_world::{PartShape, World};
    ///
    /// let ranks = World::threads(2).join()?.into_iter().map(|rank| {
    ///     std::thread::spawn(move || {
    ///         let part = TensorData::from([1.0f32, 2.0]);
    ///         match rank.rank() {
    ///             0 => rank.send("a pair", vec![part]).map(|()| vec![]),
    ///             _ => rank.receive("a pair", vec![PartShape::of(&part)]),
    ///         }
    ///     })
    /// });
    /// let found: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect();
    /// assert_eq!(found, [Ok(vec![]), Ok(vec![TensorData::from([1.0f32, 2.0])])]);
    /// # Ok::<(), firebrick_world::WorldError>(())
    /// ```
    pub fn send(&self, what: &str, parts: Vec<TensorData>) -> Result<(), WorldError> {
        let call = self.to_other(what, parts.iter().map(PartShape::of).collect())?;
        let mut pieces = vec![vec![]; 2];
        pieces[1 - self.rank()] = parts.into_iter().map(|part| Some(piece(part))).collect();
        let sequence = self.number();
        self.seat().post(sequence, &call, pieces)?;
        // The other rank answers with nothing, which nobody waits for.
        self.seat().abandon(sequence);
        Ok(())
    }

    /// Waits for parts like these, which the other rank of a group of two [sends](Self::send). In a
    /// [rehearsal](Self::rehearsal), they are zeros.
    ///
    /// # Errors
    ///
    /// [`WorldError::Shape`] if the group has another number of ranks than two; and an error if the other rank fails, ends,
    /// sends something else, or is late.
    pub fn receive(&self, what: &str, like: Vec<PartShape>) -> Result<Vec<TensorData>, WorldError> {
        let call = self.to_other(what, like)?;
        let arrived = self.exchange(&call, vec![vec![]; 2])?;
        let sent = arrived.into_iter().nth(1 - self.rank()).unwrap_or_default();
        let mut sent = sent.into_iter().flatten();
        let parts = call.parts.iter().map(|part| {
            let zeros = || vec![0; part.elements() * part.dtype.size()];
            match sent.next() {
                Some(piece) => joined(part.dtype, part.shape.clone(), std::iter::once(&*piece.bytes)),
                None => joined(part.dtype, part.shape.clone(), std::iter::once(&*zeros())),
            }
        });
        Ok(parts.collect())
    }

    /// Opens a call between the ranks of a group of two.
    fn to_other(&self, what: &str, parts: Vec<PartShape>) -> Result<Arc<Call>, WorldError> {
        let call = Call::new(Collective::Send, what, parts);
        match self.size() {
            2 => Ok(self.open(call)),
            size => {
                let (expected, found) = ("a group of two ranks".to_string(), size.to_string());
                Err(WorldError::Shape { call: call.to_string(), expected, found })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::World;

    fn number(value: f32) -> TensorData {
        TensorData::from([value])
    }

    /// A rank sends ahead of the one that receives, in both directions, and only what is sent counts.
    #[test]
    fn what_is_sent_waits_in_its_order() {
        let ranks = World::threads(2).join().unwrap().into_iter().map(|world| {
            thread::spawn(move || {
                let [forth, back] = [0, 1].map(|_| world.split(|_| 0));
                let like = || vec![PartShape::of(&number(0.0))];
                let (out, into) = if world.rank() == 0 { (forth, back) } else { (back, forth) };
                for value in 0..3 {
                    out.send("a number", vec![number(value as f32 + 10.0 * world.rank() as f32)]).unwrap();
                }
                let found = [(); 3].map(|()| into.receive("a number", like()).unwrap().remove(0));
                let moved = world.traffic().of(Collective::Send);
                (found, moved.elements, moved.sent, moved.received)
            })
        });
        let found: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect();
        assert_eq!(found[0], ([10.0, 11.0, 12.0].map(number), 3, 12, 12));
        assert_eq!(found[1], ([0.0, 1.0, 2.0].map(number), 3, 12, 12));
    }

    #[test]
    fn another_shape_is_an_error_of_both_and_a_third_rank_of_none() {
        let ranks = World::threads(2).join().unwrap().into_iter().map(|world| {
            thread::spawn(move || match world.rank() {
                0 => world.send("it", vec![number(1.0)]).and_then(|()| world.barrier()).unwrap_err(),
                _ => world.receive("it", vec![]).unwrap_err(),
            })
        });
        for error in ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()) {
            assert!(error.to_string().contains("send of it"), "{error}");
        }
        let alone = World::threads(3).join().unwrap().remove(0);
        let error = alone.send("it", vec![]).unwrap_err().to_string();
        assert!(error.contains("a group of two ranks"), "{error}");
    }

    #[test]
    fn a_rehearsal_receives_zeros() {
        let found = Communicator::rehearsal(2).receive("it", vec![PartShape::of(&number(0.0))]);
        assert_eq!(found, Ok(vec![number(0.0)]));
    }
}
