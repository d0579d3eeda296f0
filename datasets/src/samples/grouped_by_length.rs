//! Groups samples of similar length to reduce padding.

use std::{
    cmp::Reverse,
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use super::{Permutation, Samples};
use crate::{Amount, DataError, Drawn};

/// The number of batches that are sorted together: a larger number means less padding and less randomness.
const BATCHES: usize = 50;

/// Separates this order from others with the same seed.
const BATCH_ORDER: u64 = 0x6C65_6E67_7468;

/// Orders samples so that those of one batch have similar lengths.
///
/// The samples of the inner order are taken 50 batches at a time and sorted by length, longest first; the batches among
/// them are then shuffled by the seed and the epoch. A batch therefore holds samples of similar length, the 50 batches
/// are drawn at random, and lengths follow no trend. (Hugging Face's `LengthGroupedSampler` sorts the same way, but
/// keeps the batches in descending order, so each 50 batches begin with the longest.) The very first batch of an epoch
/// is the one with the longest samples of its 50: a lack of memory therefore usually shows at once.
///
/// `batch` is the size of a global batch. It defines the order, but not how batches are later cut: any other cut sees
/// the same order.
#[derive(Clone)]
pub struct GroupedByLength<S: Samples> {
    inner: S,
    seed: u64,
    batch: Amount,
    /// The number of samples that are sorted together.
    group: usize,
    length: Arc<Length<S::Sample>>,
    /// The most recently used orders of groups, by epoch and group.
    orders: Arc<Mutex<Vec<GroupOrder>>>,
}

type Length<S> = dyn Fn(&S) -> usize + Send + Sync;
type GroupOrder = ((u64, usize), Arc<[usize]>);

/// The number of cached orders: the current group, the previous one, and those of an evaluation.
const KEPT: usize = 4;

impl<S: Samples> GroupedByLength<S> {
    /// Groups a stream. The stream should support fast random access.
    ///
    /// # Errors
    ///
    /// [`DataError::Zero`] if `batch` is 0.
    pub fn new(
        inner: S,
        seed: u64,
        batch: Amount,
        length: impl Fn(&S::Sample) -> usize + Send + Sync + 'static,
    ) -> Result<Self, DataError> {
        let samples = match batch {
            Amount::Samples(0) | Amount::Tokens(0) => return Err(DataError::Zero { setting: "batch" }),
            Amount::Samples(samples) => samples,
            Amount::Tokens(tokens) => tokens / mean_length(&inner, &length)?,
        };
        let group = samples.max(1).saturating_mul(BATCHES);
        Ok(Self { inner, seed, batch, group, length: Arc::new(length), orders: Arc::default() })
    }

    /// Returns the number of samples that are sorted together.
    pub fn group(&self) -> usize {
        self.group
    }

    /// Returns the positions of a group in the inner order, in their new order.
    fn order(&self, epoch: u64, group: usize) -> Result<Arc<[usize]>, DataError> {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, order)) = orders.iter().find(|(key, _)| *key == (epoch, group)) {
            return Ok(Arc::clone(order));
        }
        let start = group * self.group;
        let end = start.saturating_add(self.group).min(self.inner.samples(epoch));
        let mut sorted = (start..end)
            .map(|position| {
                Ok((self.length)(&*self.inner.sample(epoch, position)?.sample))
                    .map(|length| (length, position))
            })
            .collect::<Result<Vec<_>, DataError>>()?;
        sorted.sort_by_key(|&(length, position)| (Reverse(length), position));
        let order = self.shuffle(epoch, group, &self.batches(&sorted));
        if orders.len() == KEPT {
            orders.remove(0);
        }
        orders.push(((epoch, group), Arc::clone(&order)));
        Ok(order)
    }

    /// Splits sorted samples into batches, as a cut by this amount would.
    fn batches<'a>(&self, sorted: &'a [(usize, usize)]) -> Vec<&'a [(usize, usize)]> {
        let mut rest = sorted;
        let mut batches = Vec::new();
        while let Some(&(longest, _)) = rest.first() {
            let samples = match self.batch {
                Amount::Samples(samples) => samples,
                Amount::Tokens(tokens) => tokens / longest.max(1),
            };
            let (batch, after) = rest.split_at(samples.clamp(1, rest.len()));
            batches.push(batch);
            rest = after;
        }
        batches
    }

    /// Shuffles whole batches. The last one stays last, since it may be incomplete: moving it would shift all cuts.
    fn shuffle(&self, epoch: u64, group: usize, batches: &[&[(usize, usize)]]) -> Arc<[usize]> {
        let whole = batches.len().saturating_sub(1);
        // The first group of an epoch begins with its longest batch, so that running out of memory shows at once.
        let fixed = usize::from(group == 0 && whole > 0);
        let shuffled =
            Permutation::new(whole - fixed, self.seed ^ BATCH_ORDER, epoch ^ (group as u64).rotate_left(32));
        let moved = (0..shuffled.len()).map(|at| shuffled.at(at) + fixed);
        let order = (0..fixed).chain(moved).chain(whole..batches.len());
        order.flat_map(|batch| batches[batch].iter().map(|&(_, position)| position)).collect()
    }
}

/// Returns the mean length of the first samples, at least 1.
fn mean_length<S: Samples>(inner: &S, length: &impl Fn(&S::Sample) -> usize) -> Result<usize, DataError> {
    let looked_at = inner.samples(0).min(1000);
    let mut sum = 0;
    for position in 0..looked_at {
        sum += length(&*inner.sample(0, position)?.sample);
    }
    Ok((sum / looked_at.max(1)).max(1))
}

impl<S: Samples> Samples for GroupedByLength<S> {
    type Sample = S::Sample;

    fn samples(&self, epoch: u64) -> usize {
        self.inner.samples(epoch)
    }

    fn sample(&self, epoch: u64, position: usize) -> Result<Drawn<S::Sample>, DataError> {
        match self.order(epoch, position / self.group)?.get(position % self.group) {
            Some(&inner) => self.inner.sample(epoch, inner),
            None => Err(DataError::out_of_range(epoch, position, self.samples(epoch))),
        }
    }
}

impl<S: Samples + fmt::Debug> fmt::Debug for GroupedByLength<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("GroupedByLength");
        fields.field("inner", &self.inner).field("seed", &self.seed).field("batch", &self.batch);
        fields.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::InMemory;

    /// The lengths in an epoch. Each sample is its own length.
    fn lengths(samples: &impl Samples<Sample = usize>, epoch: u64) -> Vec<usize> {
        (0..samples.samples(epoch)).map(|at| *samples.sample(epoch, at).unwrap().sample).collect()
    }

    /// Lengths distributed like those of text: many short, few long.
    fn corpus() -> Vec<usize> {
        (0..2000).map(|at| 3 + (at * 7919 % 97) * (at * 104_729 % 89) / 40).collect()
    }

    fn padded(lengths: &[usize], batch: usize) -> usize {
        lengths.chunks(batch).map(|rows| rows.len() * rows.iter().max().unwrap()).sum()
    }

    #[test]
    fn batches_group_similar_lengths_in_random_order() {
        let plain = InMemory::new(corpus()).shuffled(5);
        let grouped =
            InMemory::new(corpus()).grouped_by_length(5, Amount::Samples(8), |&length| length).unwrap();
        let real: usize = corpus().iter().sum();
        let (loose, tight) = (lengths(&plain, 0), lengths(&grouped, 0));
        assert!(padded(&loose, 8) as f64 > 1.8 * real as f64);
        assert!((padded(&tight, 8) as f64) < 1.1 * real as f64);

        // The first of all batches is the longest of its group; the others are not in descending order.
        let firsts: Vec<usize> = tight.chunks(8).map(|rows| rows[0]).collect();
        assert_eq!(firsts[0], *firsts[..50].iter().max().unwrap());
        assert!(!firsts[50..100].is_sorted_by(|a, b| a >= b));
        assert_ne!(tight, lengths(&grouped, 1));
    }

    #[test]
    fn batches_by_tokens_are_those_of_the_cut() {
        let grouped =
            InMemory::new(corpus()).grouped_by_length(5, Amount::Tokens(400), |&length| length).unwrap();
        let lengths = lengths(&grouped, 0);
        let (mut padded, mut start) = (0, 0);
        while start < lengths.len() {
            let mut end = start + 1;
            while end < lengths.len() && (end + 1 - start) * lengths[start..=end].iter().max().unwrap() <= 400
            {
                end += 1;
            }
            padded += (end - start) * lengths[start..end].iter().max().unwrap();
            start = end;
        }
        let real: usize = corpus().iter().sum();
        assert!((padded as f64) < 1.1 * real as f64, "{padded} {real}");
    }

    #[test]
    fn zero() {
        let grouped = InMemory::new(vec![1]).grouped_by_length(0, Amount::Tokens(0), |&length| length);
        assert!(matches!(grouped, Err(DataError::Zero { setting: "batch" })));
    }

    proptest! {
        #[test]
        fn each_sample_once(samples in 0_usize..300, batch in 1_usize..7, tokens: bool, epoch: u64) {
            let batch = if tokens { Amount::Tokens(10 * batch) } else { Amount::Samples(batch) };
            let grouped =
                InMemory::new((0..samples).collect()).grouped_by_length(1, batch, |at| at % 10).unwrap();
            let mut seen = lengths(&grouped, epoch);
            seen.sort();
            prop_assert!(seen.into_iter().eq(0..samples));
            prop_assert!(grouped.sample(epoch, samples).is_err());
        }
    }
}
