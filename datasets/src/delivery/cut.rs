//! Cuts the samples of an epoch into batches and deals them to ranks.

use std::ops::Range;

use crate::{Batches, DataError, SampleError};

/// The size of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// A number of samples.
    Samples(usize),
    /// As many samples as fit in a number of tokens, including padding.
    Tokens(usize),
}

impl Amount {
    /// Multiplies the amount.
    pub fn times(self, factor: usize) -> Self {
        match self {
            Self::Samples(samples) => Self::Samples(samples.saturating_mul(factor)),
            Self::Tokens(tokens) => Self::Tokens(tokens.saturating_mul(factor)),
        }
    }
}

/// Divides the samples of an epoch into micro-batches: cuts first, then deals.
///
/// The *global batch* holds the samples of one optimizer step, over all ranks. It is cut first, by the global amount
/// alone, so the sequence of global batches does not depend on the number of ranks or the size of a micro-batch. Each
/// rank then gets its part, a contiguous range of samples; the parts differ in size by at most one sample. Each part is
/// cut into micro-batches. All ranks get the same number of micro-batches, since they run in lockstep: the last ones of
/// a rank may be empty.
///
/// # Example
///
/// ```
/// use firebrick_datasets::{Amount, Cut};
///
/// // Four micro-batches of 8 samples make a step, on one rank or, with two each, on two.
/// let alone = Cut::new(Amount::Samples(32), Amount::Samples(8))?;
/// let second_of_two = alone.for_rank(1, 2)?;
/// // Steps of 16,384 tokens after padding, no more than 4,096 at once.
/// let by_tokens = Cut::new(Amount::Tokens(16_384), Amount::Tokens(4_096))?;
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    global: Amount,
    micro: Amount,
    rank: usize,
    ranks: usize,
}

impl Cut {
    /// Cuts steps of the global amount into micro-batches of the micro amount, for a single rank.
    ///
    /// # Errors
    ///
    /// [`DataError::Zero`] if an amount is 0.
    pub fn new(global: Amount, micro: Amount) -> Result<Self, DataError> {
        for (setting, amount) in [("micro_batch", micro), ("global_batch", global)] {
            if let Amount::Samples(0) | Amount::Tokens(0) = amount {
                return Err(DataError::Zero { setting });
            }
        }
        Ok(Self { global, micro, rank: 0, ranks: 1 })
    }

    /// Selects the part of one rank.
    ///
    /// # Errors
    ///
    /// [`SampleError::Rank`] unless `rank` is below `ranks`.
    pub fn for_rank(self, rank: usize, ranks: usize) -> Result<Self, DataError> {
        match rank < ranks {
            true => Ok(Self { rank, ranks, ..self }),
            false => Err(SampleError::Rank { rank, ranks }.into()),
        }
    }

    /// Returns the global batch that begins at `start` in an epoch of `samples` samples.
    ///
    /// # Errors
    ///
    /// [`SampleError::SampleTooLong`] if its first sample has more tokens than allowed, and any error of the data.
    pub fn global_batch(
        &self,
        batches: &impl Batches,
        epoch: u64,
        start: usize,
        samples: usize,
    ) -> Result<Range<usize>, DataError> {
        take(batches, epoch, start..samples, self.global)
    }

    /// Returns the micro-batches of this rank in a global batch.
    ///
    /// # Errors
    ///
    /// Those of [`global_batch`](Self::global_batch).
    pub fn micro_batches(
        &self,
        batches: &impl Batches,
        epoch: u64,
        global: &Range<usize>,
    ) -> Result<Vec<Range<usize>>, DataError> {
        let mut own = Vec::new();
        let mut most = 0;
        for rank in 0..self.ranks {
            let part = self.part(rank, global);
            most = match (self.micro, rank == self.rank) {
                // The first part is the longest.
                (Amount::Samples(_), false) if rank > 0 => most,
                (Amount::Samples(samples), false) => part.len().div_ceil(samples),
                (_, is_own) => {
                    let micro_batches = self.cut(batches, epoch, part)?;
                    let count = micro_batches.len();
                    if is_own {
                        own = micro_batches;
                    }
                    most.max(count)
                }
            };
        }
        let end = self.part(self.rank, global).end;
        own.resize(most, end..end);
        Ok(own)
    }

    /// Returns a rank's part of a global batch. The first ranks get the larger parts.
    fn part(&self, rank: usize, global: &Range<usize>) -> Range<usize> {
        let (each, larger) = (global.len() / self.ranks, global.len() % self.ranks);
        let start = |rank: usize| global.start + rank * each + rank.min(larger);
        start(rank)..start(rank + 1)
    }

    fn cut(
        &self,
        batches: &impl Batches,
        epoch: u64,
        part: Range<usize>,
    ) -> Result<Vec<Range<usize>>, DataError> {
        let mut left = part;
        let mut micro_batches = Vec::new();
        while !left.is_empty() {
            let taken = take(batches, epoch, left.clone(), self.micro)?;
            left.start = taken.end;
            micro_batches.push(taken);
        }
        Ok(micro_batches)
    }
}

/// Returns the longest prefix of `left` that does not exceed the amount.
fn take(
    batches: &impl Batches,
    epoch: u64,
    left: Range<usize>,
    amount: Amount,
) -> Result<Range<usize>, DataError> {
    let start = left.start;
    let most = match amount {
        Amount::Samples(samples) => return Ok(start..start.saturating_add(samples).min(left.end)),
        Amount::Tokens(tokens) => tokens,
    };
    let tokens = |samples: usize| batches.padded_tokens(epoch, start..start + samples);
    let first = tokens(1)?;
    if first > most {
        return Err(SampleError::SampleTooLong { epoch, position: start, tokens: first, most }.into());
    }
    // `fits` samples fit. Doubles the step as long as they do, then narrows it.
    let (mut fits, mut step) = (1, 1);
    while fits + step <= left.len() && tokens(fits + step)? <= most {
        fits += step;
        step *= 2;
    }
    while step > 1 {
        step /= 2;
        if fits + step <= left.len() && tokens(fits + step)? <= most {
            fits += step;
        }
    }
    Ok(start..start + fits)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::TokenBatch;

    /// Samples of these lengths.
    struct Lengths(Vec<usize>);

    impl Batches for Lengths {
        type Batch = TokenBatch;

        fn samples(&self, _: u64) -> usize {
            self.0.len()
        }

        fn batch(&self, _: u64, _: Range<usize>) -> Result<TokenBatch, DataError> {
            TokenBatch::from_rows(Vec::new(), 0)
        }

        fn padded_tokens(&self, _: u64, positions: Range<usize>) -> Result<usize, DataError> {
            let rows = &self.0[positions];
            Ok(rows.len() * rows.iter().max().unwrap_or(&0))
        }
    }

    #[test]
    fn by_tokens() {
        let lengths = Lengths(vec![4, 4, 3, 9, 1, 1]);
        let cut = Cut::new(Amount::Tokens(12), Amount::Tokens(8)).unwrap();
        assert_eq!(cut.global_batch(&lengths, 0, 0, 6).unwrap(), 0..3);
        assert_eq!(cut.micro_batches(&lengths, 0, &(0..3)).unwrap(), [0..2, 2..3]);
        let too_long = cut.micro_batches(&lengths, 0, &(3..4)).unwrap_err();
        assert!(matches!(
            too_long,
            DataError::Sample(SampleError::SampleTooLong { position: 3, tokens: 9, most: 8, .. })
        ));
    }

    #[test]
    fn ranks_work_in_step() {
        let lengths = Lengths(vec![1; 9]);
        let cut = Cut::new(Amount::Samples(9), Amount::Samples(2)).unwrap();
        let micro = |rank| cut.for_rank(rank, 4).unwrap().micro_batches(&lengths, 0, &(0..9)).unwrap();
        assert_eq!(micro(0), [0..2, 2..3]);
        assert_eq!(micro(1), [3..5, 5..5]);
        assert_eq!(micro(3), [7..9, 9..9]);
        assert!(matches!(
            cut.for_rank(4, 4).unwrap_err(),
            DataError::Sample(SampleError::Rank { rank: 4, ranks: 4 })
        ));
    }

    #[test]
    fn without_counts() {
        struct Silent;
        impl Batches for Silent {
            type Batch = TokenBatch;
            fn samples(&self, _: u64) -> usize {
                1
            }
            fn batch(&self, _: u64, _: Range<usize>) -> Result<TokenBatch, DataError> {
                TokenBatch::from_rows(Vec::new(), 0)
            }
        }
        let cut = Cut::new(Amount::Tokens(1), Amount::Samples(1)).unwrap();
        assert!(matches!(
            cut.global_batch(&Silent, 0, 0, 1).unwrap_err(),
            DataError::Sample(SampleError::NoTokenCounts)
        ));
    }

    fn amount() -> impl Strategy<Value = Amount> {
        prop_oneof![(1_usize..9).prop_map(Amount::Samples), (12_usize..60).prop_map(Amount::Tokens)]
    }

    proptest! {
        /// Together, all ranks have each sample of the global batch once, in order. Micro-batches are cut
        /// greedily within the amount, and each rank has the same number of them.
        #[test]
        fn ranks_receive_every_sample_once(
            lengths in prop::collection::vec(1_usize..12, 1..80),
            global in amount(), micro in amount(), ranks in 1_usize..9,
        ) {
            let lengths = Lengths(lengths);
            let cut = Cut::new(global, micro).unwrap();
            let within = |amount, range: &Range<usize>| match amount {
                Amount::Samples(samples) => range.len() <= samples,
                Amount::Tokens(tokens) => lengths.padded_tokens(0, range.clone()).unwrap() <= tokens,
            };
            let mut start = 0;
            while start < lengths.0.len() {
                let batch = cut.global_batch(&lengths, 0, start, lengths.0.len()).unwrap();
                prop_assert!(within(global, &batch) && !batch.is_empty());
                if batch.end < lengths.0.len() {
                    prop_assert!(!within(global, &(batch.start..batch.end + 1)));
                }
                let of_ranks: Vec<_> = (0..ranks)
                    .map(|rank| cut.for_rank(rank, ranks).unwrap().micro_batches(&lengths, 0, &batch).unwrap())
                    .collect();
                prop_assert!(of_ranks.iter().all(|part| part.len() == of_ranks[0].len()));
                let micro_batches = || of_ranks.iter().flatten().filter(|range| !range.is_empty());
                prop_assert!(micro_batches().all(|range| within(micro, range)));
                prop_assert!(micro_batches().cloned().flatten().eq(batch.clone()));
                start = batch.end;
            }
        }
    }
}
