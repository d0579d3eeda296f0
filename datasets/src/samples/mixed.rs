//! Mixes several weighted corpora into one stream.

use std::{
    collections::VecDeque,
    fmt,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};

use super::{Permutation, Samples, mix};
use crate::{DataError, Drawn, SampleError};

/// The number of positions in which each corpus has exactly its share.
const BLOCK: usize = 10_000;

/// The number of cached blocks: those that batches are currently drawn from, and those in which epochs end.
const KEPT: usize = 8;

/// Separates this order from others with the same seed.
const CORPUS_ORDER: u64 = 0x0063_6F72_7075;

/// The end of an epoch of a mix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Until {
    /// The epoch ends before the first corpus would repeat: no sample occurs twice.
    FirstIsUsedUp,
    /// The epoch ends when all corpora are used up: each sample occurs at least once. Shorter corpora repeat.
    #[default]
    AllAreUsedUp,
}

/// Mixes several corpora into one stream in proportion to their weights.
///
/// An epoch of the mix starts each corpus at its beginning. Of every 10,000 positions, each corpus fills exactly the
/// share that its weight specifies, at positions chosen by a [`Permutation`] with the seed and the epoch. Within its
/// positions, a corpus keeps its own order, and if it is used up before the epoch ends, it starts its own next epoch.
/// The mix is therefore stateless: the sample at a position is computed from the position.
///
/// The weights apply to *samples*, not to tokens. Every epoch of a corpus must have the same number of samples: pack
/// the mix, not the corpora.
///
/// # Example
///
/// ```
/// use firebrick_datasets::{InMemory, Mixed, Samples, Until};
///
/// let large = InMemory::new(vec!["prose"; 900]).shuffled(1);
/// let small = InMemory::new(vec!["code"; 100]).shuffled(2);
/// let mix = Mixed::new(vec![(large, 3.0), (small, 1.0)], 42, Until::AllAreUsedUp)?;
///
/// // 900 samples are about three quarters of an epoch.
/// assert!((1150..1250).contains(&mix.samples(0)));
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
pub struct Mixed<S> {
    corpora: Vec<Corpus<S>>,
    seed: u64,
    until: Until,
    blocks: Mutex<VecDeque<(BlockId, Arc<Block>)>>,
    /// The number of samples in the epoch requested last.
    length: Mutex<Option<(u64, usize)>>,
}

struct Corpus<S> {
    samples: S,
    /// The number of samples in each epoch.
    count: usize,
    /// The slots of a block that belong to this corpus.
    slots: Range<usize>,
}

/// An epoch and the number of a block in it.
type BlockId = (u64, usize);

/// For each position of a block, the corpus and the number of its draw within this block.
type Block = Vec<(u16, u16)>;

impl<S: Samples> Mixed<S> {
    /// Mixes corpora by their weights. Only the ratio of the weights matters.
    ///
    /// # Errors
    ///
    /// - [`SampleError::Weight`] if a weight is not a number above 0, or is below 1/10,000 of the sum
    /// - [`SampleError::EmptyCorpus`] if there are no corpora, or one has no samples
    pub fn new(corpora: Vec<(S, f64)>, seed: u64, until: Until) -> Result<Self, DataError> {
        if corpora.is_empty() {
            return Err(SampleError::EmptyCorpus { corpus: 0 }.into());
        }
        let weights: Vec<f64> = corpora.iter().map(|&(_, weight)| weight).collect();
        let mut start = 0;
        let mut slotted = Vec::new();
        for (corpus, ((samples, _), share)) in corpora.into_iter().zip(shares(&weights)?).enumerate() {
            let count = samples.samples(0);
            if count == 0 {
                return Err(SampleError::EmptyCorpus { corpus }.into());
            }
            slotted.push(Corpus { samples, count, slots: start..start + share });
            start += share;
        }
        Ok(Self { corpora: slotted, seed, until, blocks: Mutex::default(), length: Mutex::default() })
    }

    fn block(&self, id: BlockId) -> Arc<Block> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, block)) = blocks.iter().find(|(of, _)| *of == id) {
            return Arc::clone(block);
        }
        let (epoch, number) = id;
        let order =
            Permutation::new(BLOCK, self.seed ^ CORPUS_ORDER, epoch ^ (number as u64).rotate_left(32));
        let mut draws = vec![0; self.corpora.len()];
        let owners: Vec<u16> = (0_u16..)
            .zip(&self.corpora)
            .flat_map(|(at, corpus)| corpus.slots.clone().map(move |_| at))
            .collect();
        let draw = |position| {
            let corpus = owners[order.at(position)];
            let draws = &mut draws[usize::from(corpus)];
            *draws += 1;
            (corpus, *draws - 1)
        };
        let block: Arc<Block> = Arc::new((0..BLOCK).map(draw).collect());
        if blocks.len() == KEPT {
            blocks.pop_front();
        }
        blocks.push_back((id, Arc::clone(&block)));
        block
    }

    /// Returns the position at which an epoch ends.
    fn length_of(&self, epoch: u64) -> usize {
        let corpora = self.corpora.iter().enumerate();
        let ends = corpora.map(|(at, corpus)| match self.until {
            Until::FirstIsUsedUp => self.position(epoch, at, corpus.count),
            Until::AllAreUsedUp => self.position(epoch, at, corpus.count - 1) + 1,
        });
        match self.until {
            Until::FirstIsUsedUp => ends.min(),
            Until::AllAreUsedUp => ends.max(),
        }
        .unwrap_or(0)
    }

    /// Returns the position of a corpus's draw, counted from 0, in an epoch.
    fn position(&self, epoch: u64, corpus: usize, draw: usize) -> usize {
        let share = self.corpora[corpus].slots.len();
        let block = self.block((epoch, draw / share));
        let within = block.iter().position(|&at| at == (corpus as u16, (draw % share) as u16));
        (draw / share).saturating_mul(BLOCK).saturating_add(within.unwrap_or(BLOCK))
    }
}

/// Returns the number of slots in a block for each weight, by largest remainder; at least one.
fn shares(weights: &[f64]) -> Result<Vec<usize>, DataError> {
    let sum: f64 = weights.iter().sum();
    let least = sum / BLOCK as f64;
    if let Some(corpus) =
        weights.iter().position(|weight| !(weight.is_finite() && *weight > 0.0 && *weight >= least))
    {
        return Err(SampleError::Weight { corpus, weight: weights[corpus], least }.into());
    }
    let exact: Vec<f64> = weights.iter().map(|weight| weight / sum * BLOCK as f64).collect();
    let mut shares: Vec<usize> = exact.iter().map(|exact| *exact as usize).collect();
    let mut by_remainder: Vec<usize> = (0..weights.len()).collect();
    by_remainder.sort_by(|&a, &b| exact[b].fract().total_cmp(&exact[a].fract()).then(a.cmp(&b)));
    let left = BLOCK.saturating_sub(shares.iter().sum());
    for &corpus in by_remainder.iter().take(left) {
        shares[corpus] += 1;
    }
    Ok(shares)
}

impl<S: Samples> Samples for Mixed<S> {
    type Sample = S::Sample;

    fn samples(&self, epoch: u64) -> usize {
        let mut length = self.length.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, samples)) = length.filter(|(of, _)| *of == epoch) {
            return samples;
        }
        let samples = self.length_of(epoch);
        *length = Some((epoch, samples));
        samples
    }

    fn sample(&self, epoch: u64, position: usize) -> Result<Drawn<S::Sample>, DataError> {
        let samples = self.samples(epoch);
        if position >= samples {
            return Err(DataError::out_of_range(epoch, position, samples));
        }
        let (corpus, draw) = self.block((epoch, position / BLOCK))[position % BLOCK];
        let Corpus { samples, count, slots } = &self.corpora[usize::from(corpus)];
        let draw = position / BLOCK * slots.len() + usize::from(draw);
        // A repeated corpus draws from epochs of its own, which no other epoch of the mix uses.
        let longest = self.corpora.iter().map(|corpus| corpus.count).max().unwrap_or(1);
        let passes = (longest / count + 2) as u64 * BLOCK as u64;
        let drawn =
            samples.sample(epoch.wrapping_mul(passes).wrapping_add((draw / count) as u64), draw % count)?;
        Ok(Drawn { index: mix(drawn.index.wrapping_add(mix(u64::from(corpus) + 1))), ..drawn })
    }
}

impl<S: fmt::Debug> fmt::Debug for Mixed<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let corpora: Vec<_> =
            self.corpora.iter().map(|corpus| (&corpus.samples, corpus.slots.len())).collect();
        let mut fields = f.debug_struct("Mixed");
        fields.field("corpora", &corpora).field("seed", &self.seed).field("until", &self.until);
        fields.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::InMemory;

    type Numbered = (usize, usize);

    fn mix(corpora: &[(usize, f64)], until: Until) -> Mixed<InMemory<Numbered>> {
        let corpus = |(at, &(size, weight)): (usize, &(usize, f64))| {
            (InMemory::new((0..size).map(|number| (at, number)).collect()), weight)
        };
        Mixed::new(corpora.iter().enumerate().map(corpus).collect(), 7, until).unwrap()
    }

    fn epoch(mix: &Mixed<InMemory<Numbered>>, epoch: u64) -> Vec<Numbered> {
        (0..mix.samples(epoch)).map(|at| *mix.sample(epoch, at).unwrap().sample).collect()
    }

    #[test]
    fn a_block_has_exact_shares() {
        let mix = mix(&[(50_000, 0.7), (25_000, 0.3)], Until::AllAreUsedUp);
        for block in epoch(&mix, 1).chunks_exact(BLOCK) {
            assert_eq!(block.iter().filter(|(corpus, _)| *corpus == 0).count(), 7000);
        }
    }

    #[test]
    fn no_two_samples_share_an_index() {
        let mix = mix(&[(300, 1.0), (300, 1.0)], Until::FirstIsUsedUp);
        let indices = (0..mix.samples(0)).map(|at| mix.sample(0, at).unwrap().index);
        assert_eq!(indices.collect::<std::collections::BTreeSet<_>>().len(), mix.samples(0));
    }

    /// The random choices for a sample are new each time it is drawn.
    #[test]
    fn a_repeated_sample_is_in_another_epoch() {
        let mix = mix(&[(3, 1.0), (100, 1.0)], Until::AllAreUsedUp);
        let mut seen = std::collections::BTreeSet::new();
        for epoch in 0..3 {
            for at in 0..mix.samples(epoch) {
                let drawn = mix.sample(epoch, at).unwrap();
                assert!(seen.insert((drawn.epoch, drawn.index)));
            }
        }
    }

    #[test]
    fn impossible_mixes() {
        let new = |weights: &[f64]| {
            let corpora = weights.iter().map(|&weight| (InMemory::new(vec![1]), weight)).collect();
            Mixed::new(corpora, 0, Until::default())
        };
        assert!(matches!(new(&[]).unwrap_err(), DataError::Sample(SampleError::EmptyCorpus { corpus: 0 })));
        for weight in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-5] {
            let error = new(&[1.0, weight]).unwrap_err();
            assert!(matches!(error, DataError::Sample(SampleError::Weight { .. })), "{error}");
        }
        let empty = Mixed::new(vec![(InMemory::<u8>::new(vec![]), 1.0)], 0, Until::default());
        assert!(matches!(empty.unwrap_err(), DataError::Sample(SampleError::EmptyCorpus { corpus: 0 })));
    }

    proptest! {
        #[test]
        fn shares_fill_a_block(weights in prop::collection::vec(0.01_f64..1.0, 1..12)) {
            let shares = shares(&weights).unwrap();
            let sum: f64 = weights.iter().sum();
            prop_assert_eq!(shares.iter().sum::<usize>(), BLOCK);
            for (share, weight) in shares.into_iter().zip(weights) {
                prop_assert!((share as f64 - weight / sum * BLOCK as f64).abs() < 1.0);
            }
        }

        /// At any size, also far below a block, each corpus keeps its own order. With one rule, no sample occurs twice,
        /// and one more position would repeat one; with the other, each sample occurs, and the last one occurs for the
        /// first time.
        #[test]
        fn epochs_end_where_they_say(
            corpora in prop::collection::vec((1_usize..400, 0.05_f64..1.0), 1..5), number in 0_u64..3,
        ) {
            for until in [Until::FirstIsUsedUp, Until::AllAreUsedUp] {
                let mix = mix(&corpora, until);
                let drawn = epoch(&mix, number);
                let mut times = BTreeMap::new();
                for &(corpus, sample) in &drawn {
                    let drawn: &mut usize = times.entry(corpus).or_default();
                    prop_assert_eq!(sample, *drawn % corpora[corpus].0);
                    *drawn += 1;
                }
                let rounds = |(at, &(size, _)): (usize, &(usize, f64))| {
                    (times.get(&at).copied().unwrap_or(0), size)
                };
                let mut rounds = corpora.iter().enumerate().map(rounds);
                match until {
                    Until::FirstIsUsedUp => prop_assert!(rounds.all(|(times, size)| times <= size)),
                    Until::AllAreUsedUp => {
                        prop_assert!(rounds.all(|(times, size)| times >= size));
                        let (corpus, sample) = *drawn.last().unwrap();
                        prop_assert_eq!((times[&corpus], sample), (corpora[corpus].0, corpora[corpus].0 - 1));
                    }
                }
                prop_assert!(mix.sample(number, drawn.len()).is_err());
            }
        }
    }
}
