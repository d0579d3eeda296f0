//! Attention over the keys and values of several ranks, which go around in a ring (Liu et al., 2023, arXiv:2310.01889).

use burn::tensor::{FloatDType, Tensor};
use firebrick_kernels::{AttentionInParts, AttentionSoFar, cast};
use firebrick_world::{Communicator, PartShape, WorldError, on_host};

/// The ranks that share the tokens of a batch, each beside the next one.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    rank: usize,
    ranks: usize,
    /// This rank with the next one, and with the one before.
    next: Communicator,
    before: Communicator,
}

impl Ring {
    /// Connects several ranks. Every rank calls it.
    pub fn of(ranks: &Communicator) -> Self {
        let (rank, size) = (ranks.rank(), ranks.size());
        let pair = |first: usize| {
            // Each of the other ranks is alone. All ranks make all groups.
            ranks.split(|rank| if [first, (first + 1) % size].contains(&rank) { size } else { rank })
        };
        let pairs: Vec<_> = (0..size).map(pair).collect();
        let [next, before] = [rank, (rank + size - 1) % size].map(|first| pairs[first].clone());
        Self { rank, ranks: size, next, before }
    }

    /// Returns the rank whose keys and values this one has after so many steps.
    fn owner(&self, step: usize) -> usize {
        (self.rank + self.ranks - step) % self.ranks
    }

    fn send(&self, what: &str, x: &Tensor<4>) -> Result<(), WorldError> {
        self.next.send(what, vec![on_host(x.clone())])
    }

    fn receive(&self, what: &str, like: &Tensor<4>) -> Result<Tensor<4>, WorldError> {
        let dtype = like.dtype();
        let shape = PartShape { shape: like.dims().to_vec(), dtype, sum: dtype };
        let sent = self.before.receive(what, vec![shape])?.remove(0);
        Ok(Tensor::from_data(sent, (&like.device(), dtype)))
    }
}

const KEYS: &str = "keys and values";
const GRADIENTS: &str = "the gradients of keys and values";

/// The attention of a rank's queries, as its keys and values and those of the others go around.
pub(super) struct RingAttention {
    ring: Ring,
    parts: AttentionInParts,
    query: Tensor<4>,
    /// The keys and values of this rank, one behind the other along the axis of heads.
    pair: Tensor<4>,
}

impl RingAttention {
    /// Prepares the attention of queries, keys and values, one behind the other along the axis of heads.
    pub fn of(ring: Ring, parts: AttentionInParts, joint: Tensor<4>, key_heads: usize) -> Self {
        let heads = joint.dims()[1] - 2 * key_heads;
        let query = joint.clone().narrow(1, 0, heads);
        Self { ring, parts, query, pair: joint.narrow(1, heads, 2 * key_heads) }
    }

    /// Returns the output of all parts.
    ///
    /// # Errors
    ///
    /// Another rank is gone.
    pub fn forward(&self) -> Result<AttentionSoFar, WorldError> {
        let Self { ring, parts, query, pair } = self;
        let (mut pair, mut so_far) = (pair.clone(), None);
        for step in 0..ring.ranks - 1 {
            ring.send(KEYS, &pair)?;
            so_far = Some(parts.join(ring.owner(step), query, halves(&pair), so_far));
            pair = ring.receive(KEYS, &pair)?;
        }
        Ok(parts.join(ring.owner(ring.ranks - 1), query, halves(&pair), so_far))
    }

    /// Returns the gradients of the queries, and of the keys and values of this rank, in f32. Gradients follow their keys and
    /// values, and go one step further, to the rank that has these.
    ///
    /// # Errors
    ///
    /// Another rank is gone.
    pub fn backward(
        &self,
        output: &Tensor<4>,
        all: &AttentionSoFar,
        grad: &Tensor<4>,
    ) -> Result<[Tensor<4>; 2], WorldError> {
        let Self { ring, parts, query, pair } = self;
        let gradients = |step: usize, pair: &Tensor<4>| {
            let found = parts.gradients(ring.owner(step), query, halves(pair), (output, all), grad.clone());
            let [of_query, of_key, of_value] = found.map(|x| cast(x, FloatDType::F32));
            (of_query, Tensor::cat(vec![of_key, of_value], 1))
        };
        ring.send(KEYS, pair)?;
        let (mut of_query, mut of_pair) = gradients(0, pair);
        let mut pair = pair.clone();
        for step in 1..ring.ranks {
            ring.send(GRADIENTS, &of_pair)?;
            pair = ring.receive(KEYS, &pair)?;
            if step + 1 < ring.ranks {
                ring.send(KEYS, &pair)?;
            }
            let (own, of_others) = gradients(step, &pair);
            of_query = of_query + own;
            of_pair = ring.receive(GRADIENTS, &of_pair)? + of_others;
        }
        ring.send(GRADIENTS, &of_pair)?;
        Ok([of_query, ring.receive(GRADIENTS, &of_pair)?])
    }
}

/// Returns the keys and the values.
fn halves(pair: &Tensor<4>) -> [Tensor<4>; 2] {
    let heads = pair.dims()[1] / 2;
    [0, 1].map(|half| pair.clone().narrow(1, half * heads, heads))
}
