//! Packs whole samples into rows of a fixed length.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use super::{Permutation, Samples};
use crate::{DataError, Drawn, SampleError};

/// The number of samples that are packed together: a larger number fills rows better.
const WINDOW: usize = 1024;

/// Separates this order from others with the same seed.
const PACK_ORDER: u64 = 0x0070_6163_6B73;

/// Packs whole samples into rows with a maximum number of tokens.
///
/// The samples of the inner order are taken 1,024 at a time. Each is put, longest first, into the fullest row with
/// enough room (best-fit decreasing, which needs at most 11/9 of the minimum number of rows: Johnson, "Near-optimal bin
/// packing algorithms", 1973); the rows are then shuffled by the seed and the epoch. No sample is cut.
///
/// The plan of an epoch is made at its first use and needs the length of each sample, which is fast for samples in
/// memory. For a corpus larger than memory, use fixed windows of a token file instead.
pub struct Packs<S: Samples> {
    inner: S,
    seed: u64,
    most: usize,
    length: Box<Length<S::Sample>>,
    /// The most recently used plans, by epoch.
    plans: Mutex<Vec<(u64, Arc<Plan>)>>,
}

type Length<S> = dyn Fn(&S) -> usize + Send + Sync;

/// The positions in the inner order of each row's samples.
type Plan = Vec<Box<[usize]>>;

/// The number of cached plans: this epoch's and the next one's.
const KEPT: usize = 2;

impl<S: Samples> Packs<S> {
    /// Packs rows of at most `most` tokens.
    ///
    /// # Errors
    ///
    /// [`DataError::Zero`] if `most` is 0, and [`SampleError::SampleTooLong`] if a sample of the first epoch has more
    /// tokens than that.
    pub fn new(
        inner: S,
        seed: u64,
        most: usize,
        length: impl Fn(&S::Sample) -> usize + Send + Sync + 'static,
    ) -> Result<Self, DataError> {
        if most == 0 {
            return Err(DataError::Zero { setting: "length of a row" });
        }
        let packs = Self { inner, seed, most, length: Box::new(length), plans: Mutex::default() };
        packs.plan(0)?;
        Ok(packs)
    }

    fn plan(&self, epoch: u64) -> Result<Arc<Plan>, DataError> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, plan)) = plans.iter().find(|(of, _)| *of == epoch) {
            return Ok(Arc::clone(plan));
        }
        let samples = self.inner.samples(epoch);
        let mut plan = Plan::new();
        for start in (0..samples).step_by(WINDOW) {
            let mut rows = self.rows(epoch, start..samples.min(start + WINDOW))?;
            let order =
                Permutation::new(rows.len(), self.seed ^ PACK_ORDER, epoch ^ (start as u64).rotate_left(32));
            plan.extend((0..rows.len()).map(|at| std::mem::take(&mut rows[order.at(at)])));
        }
        let plan = Arc::new(plan);
        if plans.len() == KEPT {
            plans.remove(0);
        }
        plans.push((epoch, Arc::clone(&plan)));
        Ok(plan)
    }

    /// Packs a window with best-fit decreasing.
    fn rows(&self, epoch: u64, window: std::ops::Range<usize>) -> Result<Plan, DataError> {
        let mut sorted = Vec::with_capacity(window.len());
        for position in window {
            let tokens = (self.length)(&*self.inner.sample(epoch, position)?.sample);
            if tokens > self.most {
                return Err(SampleError::SampleTooLong { epoch, position, tokens, most: self.most }.into());
            }
            sorted.push((tokens, position));
        }
        sorted.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        let mut rows: Vec<Vec<usize>> = Vec::new();
        // The rows with room left, ordered by that room.
        let mut open = std::collections::BTreeSet::new();
        for (tokens, position) in sorted {
            let (room, row) = match open.range((tokens, 0)..).next().copied() {
                Some(fitting) => {
                    open.remove(&fitting);
                    fitting
                }
                None => {
                    rows.push(Vec::new());
                    (self.most, rows.len() - 1)
                }
            };
            rows[row].push(position);
            open.insert((room - tokens, row));
        }
        Ok(rows.into_iter().map(Vec::into_boxed_slice).collect())
    }
}

impl<S: Samples> Samples for Packs<S> {
    /// The samples of a row.
    type Sample = Vec<Arc<S::Sample>>;

    fn samples(&self, epoch: u64) -> usize {
        // If an epoch cannot be planned, its only sample is the error.
        self.plan(epoch).map_or(1, |plan| plan.len())
    }

    fn sample(&self, epoch: u64, position: usize) -> Result<Drawn<Self::Sample>, DataError> {
        let plan = self.plan(epoch)?;
        let row = plan.get(position).ok_or_else(|| DataError::out_of_range(epoch, position, plan.len()))?;
        let samples: Vec<_> = row.iter().map(|&at| self.inner.sample(epoch, at)).collect::<Result<_, _>>()?;
        let index = samples.first().map_or(0, |first| first.index);
        Ok(Drawn { epoch, index, sample: Arc::new(samples.into_iter().map(|drawn| drawn.sample).collect()) })
    }
}

impl<S: Samples + fmt::Debug> fmt::Debug for Packs<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Packs");
        fields.field("inner", &self.inner).field("seed", &self.seed).field("most", &self.most);
        fields.finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{InMemory, Shuffled};

    fn packs(lengths: Vec<usize>, most: usize) -> Result<Packs<Shuffled<InMemory<usize>>>, DataError> {
        Packs::new(InMemory::new(lengths).shuffled(3), 3, most, |&length| length)
    }

    #[test]
    fn rows_are_nearly_full() {
        let lengths: Vec<usize> = (0..5000).map(|at| 5 + at * 7919 % 90).collect();
        let tokens: usize = lengths.iter().sum();
        let packs = packs(lengths, 256).unwrap();
        assert!((packs.samples(0) * 256) as f64 <= 1.03 * tokens as f64);
        assert_ne!(*packs.sample(0, 0).unwrap().sample, *packs.sample(1, 0).unwrap().sample);
    }

    #[test]
    fn too_long() {
        let error = packs(vec![3, 9, 4], 8).unwrap_err();
        assert!(matches!(error, DataError::Sample(SampleError::SampleTooLong { tokens: 9, most: 8, .. })));
        assert!(matches!(packs(vec![1], 0).unwrap_err(), DataError::Zero { .. }));
    }

    proptest! {
        #[test]
        fn each_sample_once_and_no_row_too_long(
            lengths in prop::collection::vec(0_usize..20, 0..3000),
            epoch in 0_u64..3,
        ) {
            let numbered = InMemory::new(lengths.iter().copied().enumerate().collect()).shuffled(1);
            let packs = Packs::new(numbered, 1, 20, |sample: &(usize, usize)| sample.1).unwrap();
            let mut seen = Vec::new();
            for row in 0..packs.samples(epoch) {
                let pack = packs.sample(epoch, row).unwrap().sample;
                prop_assert!(pack.iter().map(|sample| sample.1).sum::<usize>() <= 20);
                seen.extend(pack.iter().map(|sample| sample.0));
            }
            seen.sort();
            prop_assert!(seen.into_iter().eq(0..lengths.len()));
        }
    }
}
