//! Attention over the keys and values of several ranks, which go around in a ring (Liu et al., 2023, arXiv:2310.01889).

use burn::tensor::{FloatDType, Tensor};
use firebrick_kernels::{AttentionInParts, AttentionSoFar, cast};
use firebrick_world::{Communicator, Gathering, WorldError};

const KEYS: &str = "keys and values";
const GRADIENTS: &str = "the gradients of keys and values";

/// The attention of a rank's queries, as its keys and values and those of the others go around.
pub(super) struct RingAttention {
    ranks: Communicator,
    parts: AttentionInParts,
    query: Tensor<4>,
    /// The keys and values of this rank, one behind the other along the axis of heads.
    pair: Tensor<4>,
}

impl RingAttention {
    /// Prepares the attention of queries, keys and values, one behind the other along the axis of heads.
    pub fn of(ranks: Communicator, parts: AttentionInParts, joint: Tensor<4>, key_heads: usize) -> Self {
        let heads = joint.dims()[1] - 2 * key_heads;
        let query = joint.clone().narrow(1, 0, heads);
        Self { ranks, parts, query, pair: joint.narrow(1, heads, 2 * key_heads) }
    }

    /// Returns the rank whose keys and values this one has after so many steps.
    fn owner(&self, step: usize) -> usize {
        (self.ranks.rank() + self.ranks.size() - step) % self.ranks.size()
    }

    /// Begins to hand a tensor to the next rank.
    fn hand_on(&self, what: &str, x: &Tensor<4>) -> Result<OnTheWay, WorldError> {
        let (shape, flat) = (x.dims(), x.clone().reshape([-1]));
        Ok(OnTheWay { shape, from: self.ranks.begin_shift(what, vec![flat], &x.device())? })
    }

    /// Returns the output of all parts.
    ///
    /// # Errors
    ///
    /// Another rank is gone.
    pub fn forward(&self) -> Result<AttentionSoFar, WorldError> {
        let Self { ranks, parts, query, pair } = self;
        let (mut pair, mut so_far, last) = (pair.clone(), None, ranks.size() - 1);
        for step in 0..last {
            let next = self.hand_on(KEYS, &pair)?;
            so_far = Some(parts.join(self.owner(step), query, halves(&pair), so_far));
            pair = next.wait()?;
        }
        Ok(parts.join(self.owner(last), query, halves(&pair), so_far))
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
        let Self { ranks, parts, query, pair } = self;
        let gradients = |step: usize, pair: &Tensor<4>| {
            let found = parts.gradients(self.owner(step), query, halves(pair), (output, all), grad.clone());
            let [of_query, of_key, of_value] = found.map(|x| cast(x, FloatDType::F32));
            (of_query, Tensor::cat(vec![of_key, of_value], 1))
        };
        let (mut pair, mut of_query, mut on_the_way) = (pair.clone(), None, None);
        let last = ranks.size() - 1;
        for step in 0..=last {
            let next = (step < last).then(|| self.hand_on(KEYS, &pair)).transpose()?;
            let (own, of_pair) = gradients(step, &pair);
            of_query = Some(match of_query {
                Some(sum) => sum + own,
                None => own,
            });
            let sum = match on_the_way.take().map(OnTheWay::wait).transpose()? {
                Some(sum) => sum + of_pair,
                None => of_pair,
            };
            on_the_way = Some(self.hand_on(GRADIENTS, &sum)?);
            if let Some(next) = next {
                pair = next.wait()?;
            }
        }
        let [Some(of_query), Some(of_pair)] = [of_query, on_the_way.map(OnTheWay::wait).transpose()?] else {
            unreachable!("a ring has a rank")
        };
        Ok([of_query, of_pair])
    }
}

/// A tensor that the rank before hands on.
struct OnTheWay {
    shape: [usize; 4],
    from: Gathering,
}

impl OnTheWay {
    fn wait(self) -> Result<Tensor<4>, WorldError> {
        let mut found = self.from.wait()?;
        Ok(found.remove(0).reshape(self.shape))
    }
}

/// Returns the keys and the values.
fn halves(pair: &Tensor<4>) -> [Tensor<4>; 2] {
    let heads = pair.dims()[1] / 2;
    [0, 1].map(|half| pair.clone().narrow(1, half * heads, heads))
}
