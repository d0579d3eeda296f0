//! Windows of one long text as a stream of samples.

use std::ops::Range;

use crate::{Batches, DataError, Permutation, ReadError, SampleError, TokenBatch, TokenSequence};

/// Fills short rows. Padding is never a label, so any id works.
const PAD_ID: u32 = 0;

/// Cuts a tokenized text into windows of `block + 1` tokens, as samples of a language model.
///
/// The last token of a window is the first token of the next. The model predicts all tokens of a window except the
/// first, so over an epoch it predicts each token of the text, except the very first, exactly once.
///
/// Without a shuffle, the windows come in order, cut at multiples of `block`: for validation. With
/// [`shuffled`](Self::shuffled), the order and the cuts change from epoch to epoch.
///
/// The first and the last window may be shorter. In a batch, short rows are padded on the right, with labels that do
/// not count.
///
/// # Example
///
/// ```
/// use firebrick_datasets::{Batches, Windows};
///
/// let windows = Windows::new(vec![10, 11, 12, 13, 14, 15, 16], 3)?;
/// assert_eq!(windows.samples(0), 2);
/// let batch = windows.batch(0, 0..2)?;
/// assert_eq!(batch.host_ids(), [10, 11, 12, 13, /* next row */ 13, 14, 15, 16]);
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Windows {
    tokens: TokenSequence,
    /// The range of the text within the tokens.
    range: Range<usize>,
    block: usize,
    seed: Option<u64>,
}

impl Windows {
    /// Creates windows over `tokens` in which a model predicts up to `block` tokens.
    ///
    /// # Errors
    ///
    /// [`DataError::Zero`] if `block` is 0, [`SampleError::TooShort`] if there are fewer than two tokens, since the
    /// first is never predicted.
    pub fn new(tokens: impl Into<TokenSequence>, block: usize) -> Result<Self, DataError> {
        let tokens = tokens.into();
        let all = 0..tokens.len();
        Self::within(tokens, all, block)
    }

    /// Like [`new`](Self::new), over a range of the tokens: one token file can hold both training and validation data.
    ///
    /// # Errors
    ///
    /// Those of [`new`](Self::new), and [`ReadError::TokenRange`] if the range reaches beyond the tokens.
    pub fn within(
        tokens: impl Into<TokenSequence>,
        range: Range<usize>,
        block: usize,
    ) -> Result<Self, DataError> {
        let tokens = tokens.into();
        if block == 0 {
            return Err(DataError::Zero { setting: "block" });
        }
        if range.end > tokens.len() || range.start > range.end {
            return Err(ReadError::TokenRange { range, tokens: tokens.len() }.into());
        }
        if range.len() < 2 {
            return Err(SampleError::TooShort { tokens: range.len(), needed: 2 }.into());
        }
        Ok(Self {
            // No window is longer than the text. This limit also keeps the sums below from overflowing.
            block: block.min(range.len() - 1),
            tokens,
            range,
            seed: None,
        })
    }

    /// Shuffles the windows and shifts their cuts by the seed and the epoch.
    ///
    /// Two successive epochs never cut the text at the same positions (unless `block` is 1), and `block` successive
    /// epochs cut it at every position.
    pub fn shuffled(self, seed: u64) -> Self {
        Self { seed: Some(seed), ..self }
    }

    /// Returns how many tokens before the start of the text the epoch's first window would begin.
    fn shift(&self, epoch: u64) -> usize {
        let Some(seed) = self.seed else { return 0 };
        // Training never reaches this epoch, so the shifts share no keys with an epoch's order.
        let shifts = Permutation::new(self.block, seed, u64::MAX);
        shifts.at((epoch % self.block as u64) as usize)
    }

    /// Returns the tokens of the `index`-th window from the left.
    fn window(&self, index: usize, shift: usize) -> Result<Vec<u32>, DataError> {
        let start = (index * self.block).saturating_sub(shift);
        let last = ((index + 1) * self.block - shift).min(self.range.len() - 1);
        let offset = self.range.start;
        self.tokens.range(offset + start..offset + last + 1)
    }
}

impl Batches for Windows {
    type Batch = TokenBatch;

    fn samples(&self, epoch: u64) -> usize {
        let predicted = self.range.len() - 1;
        (predicted + self.shift(epoch)).div_ceil(self.block)
    }

    fn batch(&self, epoch: u64, positions: Range<usize>) -> Result<TokenBatch, DataError> {
        let samples = self.samples(epoch);
        if positions.start > positions.end || positions.end > samples {
            return Err(SampleError::OutOfRange { epoch, positions, samples }.into());
        }
        let shift = self.shift(epoch);
        let order = self.seed.map(|seed| Permutation::new(samples, seed, epoch));
        let rows = positions
            .map(|position| order.as_ref().map_or(position, |order| order.at(position)))
            .map(|index| self.window(index, shift))
            .collect::<Result<_, _>>()?;
        TokenBatch::from_rows(rows, PAD_ID)
    }

    fn padded_tokens(&self, _epoch: u64, positions: Range<usize>) -> Result<usize, DataError> {
        Ok(positions.len().saturating_mul(self.block + 1))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Batch, IGNORE};

    /// A text in which each token is its own position.
    fn counting(len: usize, block: usize, seed: Option<u64>) -> Windows {
        let windows = Windows::new((0..len as u32).collect::<Vec<_>>(), block).unwrap();
        match seed {
            Some(seed) => windows.shuffled(seed),
            None => windows,
        }
    }

    /// Returns the rows of a batch without their padding.
    fn rows(batch: &TokenBatch) -> Vec<Vec<i32>> {
        let [samples, length] = batch.shape();
        (0..samples)
            .map(|row| {
                let labels = &batch.host_labels()[row * length..(row + 1) * length];
                labels.iter().copied().filter(|&l| l != IGNORE).collect()
            })
            .collect()
    }

    #[test]
    fn a_range_is_a_separate_text() {
        let part = Windows::within((0..20).collect::<Vec<_>>(), 4..15, 3).unwrap().shuffled(5);
        let whole = Windows::new((4..15).collect::<Vec<_>>(), 3).unwrap().shuffled(5);
        for epoch in 0..4 {
            let samples = whole.samples(epoch);
            assert_eq!(part.batch(epoch, 0..samples).unwrap(), whole.batch(epoch, 0..samples).unwrap());
        }
        assert!(matches!(
            Windows::within(vec![0; 4], 2..5, 1),
            Err(DataError::Read(ReadError::TokenRange { tokens: 4, .. }))
        ));
    }

    #[test]
    fn in_order() {
        let windows = counting(6, 2, None);
        let batch = windows.batch(9, 0..3).unwrap();
        assert_eq!(rows(&batch), [vec![0, 1, 2], vec![2, 3, 4], vec![4, 5]]);
        assert_eq!(batch.host_ids()[8], PAD_ID as i32);
    }

    #[test]
    fn impossible_settings() {
        let block = Windows::new(vec![1, 2], 0).unwrap_err();
        assert!(matches!(block, DataError::Zero { setting: "block" }));
        let short = Windows::new(vec![1], 4).unwrap_err();
        assert!(matches!(short, DataError::Sample(SampleError::TooShort { tokens: 1, needed: 2 })));
    }

    #[test]
    fn positions_out_of_range() {
        let windows = counting(10, 3, None);
        #[expect(clippy::reversed_empty_ranges)]
        for positions in [2..4, 2..1, 5..5] {
            let error = windows.batch(0, positions).unwrap_err();
            assert!(matches!(error, DataError::Sample(SampleError::OutOfRange { samples: 3, .. })));
        }
        assert_eq!(windows.batch(0, 3..3).unwrap().samples(), 0);
    }

    #[test]
    fn a_block_longer_than_the_text() {
        let batch = counting(3, usize::MAX, None).batch(0, 0..1).unwrap();
        assert_eq!(rows(&batch), [[0, 1, 2]]);
    }

    #[test]
    fn every_shift_occurs_before_one_repeats() {
        let windows = counting(100, 16, Some(5));
        let mut shifts: Vec<usize> = (32..48).map(|epoch| windows.shift(epoch)).collect();
        shifts.sort_unstable();
        assert!(shifts.into_iter().eq(0..16));
    }

    proptest! {
        #[test]
        fn each_token_is_predicted_once(
            len in 2_usize..300, block in 1_usize..40, seed: Option<u64>, epoch: u64,
        ) {
            let windows = counting(len, block, seed);
            let batch = windows.batch(epoch, 0..windows.samples(epoch)).unwrap();
            let mut predicted = Vec::new();
            for row in rows(&batch) {
                prop_assert!((2..=block + 1).contains(&row.len()));
                prop_assert!(row.windows(2).all(|pair| pair[1] == pair[0] + 1));
                predicted.extend_from_slice(&row[1..]);
            }
            prop_assert_eq!(batch.items(), predicted.len());
            predicted.sort_unstable();
            prop_assert!(predicted.into_iter().eq(1..len as i32));
        }

        #[test]
        fn batches_are_parts_of_one_stream(
            len in 2_usize..300, block in 1_usize..40, seed: Option<u64>, epoch: u64,
            cuts: [prop::sample::Index; 3],
        ) {
            let windows = counting(len, block, seed);
            let mut cuts = cuts.map(|cut| cut.index(windows.samples(epoch) + 1));
            cuts.sort_unstable();
            let [a, b, c] = cuts;
            let whole = windows.batch(epoch, a..c).unwrap();
            let mut parts = rows(&windows.batch(epoch, a..b).unwrap());
            parts.extend(rows(&windows.batch(epoch, b..c).unwrap()));
            prop_assert_eq!(rows(&whole), parts);
            prop_assert_eq!(whole, windows.batch(epoch, a..c).unwrap());
        }

        #[test]
        fn epochs_in_a_row_cut_differently(block in 2_usize..40, seed: u64, epoch in 0..u64::MAX) {
            let windows = counting(200, block, Some(seed));
            prop_assert_ne!(windows.shift(epoch), windows.shift(epoch + 1));
        }
    }
}
