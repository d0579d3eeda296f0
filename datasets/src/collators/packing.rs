//! Packs several samples into one row.

use std::sync::Arc;

use super::{CausalLm, CausalSample};
use crate::{Collator, DataError, Drawn, IGNORE, Padding, Record, SampleError, TokenBatch};

/// The samples of one row.
pub type Pack = Vec<Arc<CausalSample>>;

/// Collates packs of samples for a causal language model. Each pack becomes one row, so a batch contains little
/// padding.
///
/// The row's [`position_ids`](TokenBatch::position_ids) restart with each sample, and its
/// [`segments`](TokenBatch::segments) say which sample a token belongs to. A model that uses both, with the segments as
/// a [mask](TokenBatch::block_mask), computes the same for each sample as it would for the sample alone. The first
/// token of each sample does not count in the loss: the previous sample would predict it.
///
/// [`Packs`](crate::Packs) decides which samples form a pack; here, each sample of a record is a pack of one.
///
/// # Example
///
/// ```
/// use std::sync::Arc;
/// use firebrick_datasets::collators::{CausalLm, CausalSample, Packing};
/// use firebrick_datasets::{Collator, Drawn, Encoder, Tokenizer};
///
/// let tokenizer = Arc::new(Tokenizer::characters("abc")?);
/// let task = Packing::new(CausalLm::new(Encoder::new(tokenizer)), 6);
/// let sample = |ids: &[u32]| Arc::new(CausalSample { ids: ids.to_vec(), ..Default::default() });
/// let pack = Arc::new(vec![sample(&[0, 1, 2]), sample(&[1, 2])]);
/// let batch = task.collate(&[Drawn { epoch: 0, index: 0, sample: pack }])?;
/// assert_eq!(batch.host_ids(), [0, 1, 2, 1, 2]);
/// assert_eq!(batch.host_labels(), [-100, 1, 2, -100, 2]);
/// assert_eq!(batch.host_position_ids(), Some(&[0, 1, 2, 0, 1][..]));
/// assert_eq!(batch.host_segments(), Some(&[1, 1, 1, 2, 2][..]));
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Packing {
    causal: CausalLm,
    capacity: usize,
}

impl Packing {
    /// Creates rows of at most `capacity` tokens, padded as `causal` pads its own.
    pub fn new(causal: CausalLm, capacity: usize) -> Self {
        Self { causal, capacity }
    }

    /// Returns the maximum number of tokens in a row.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the collator that makes the samples to pack.
    pub fn causal(&self) -> &CausalLm {
        &self.causal
    }

    /// Returns an error if a row exceeds the capacity.
    fn checked(&self, row: usize, pack: &Pack) -> Result<(), DataError> {
        let tokens = tokens(pack);
        if tokens > self.capacity {
            return Err(SampleError::RowTooLong { row, tokens, length: self.capacity }.into());
        }
        Ok(())
    }
}

fn tokens(pack: &Pack) -> usize {
    pack.iter().map(|sample| sample.ids.len()).sum()
}

impl Collator for Packing {
    type Sample = Pack;
    type Batch = TokenBatch;

    /// # Errors
    ///
    /// Those of [`CausalLm`], and [`SampleError::RowTooLong`] if a sample does not fit in a row.
    fn encode(&self, record: &Record) -> Result<Vec<Pack>, DataError> {
        let packs: Vec<_> =
            self.causal.encode(record)?.into_iter().map(|sample| vec![Arc::new(sample)]).collect();
        packs.iter().try_for_each(|pack| self.checked(0, pack))?;
        Ok(packs)
    }

    fn length(&self, pack: &Pack) -> usize {
        tokens(pack)
    }

    fn padded(&self, packs: &[Arc<Pack>]) -> usize {
        self.causal.rows().area(packs.iter().map(|pack| tokens(pack)))
    }

    /// # Errors
    ///
    /// [`SampleError::RowTooLong`] if a pack has more tokens than fit in a row.
    fn collate(&self, packs: &[Drawn<Pack>]) -> Result<TokenBatch, DataError> {
        let (mut rows, mut labels, mut cuts) = (vec![], vec![], vec![]);
        for (row, pack) in packs.iter().map(|drawn| &*drawn.sample).enumerate() {
            self.checked(row, pack)?;
            let (mut ids, mut of_row) = (vec![], vec![]);
            for sample in pack {
                ids.extend_from_slice(&sample.ids);
                let first = of_row.len();
                of_row.extend(sample.labels()?);
                of_row.iter_mut().skip(first).take(1).for_each(|label| *label = IGNORE);
            }
            rows.push(ids);
            labels.push(of_row);
            cuts.push(pack.iter().map(|sample| sample.ids.len()).collect());
        }
        TokenBatch::packed(rows, labels, &cuts, self.causal.rows(), self.causal.pad())
    }
}

impl TokenBatch {
    /// Creates rows of several samples. `cuts` holds the lengths of the samples of each row; the first label of each
    /// sample must not count.
    pub(super) fn packed(
        rows: Vec<Vec<u32>>,
        labels: Vec<Vec<i32>>,
        cuts: &[Vec<usize>],
        padding: &Padding,
        pad_id: u32,
    ) -> Result<Self, DataError> {
        let mut batch = Self::padded(rows, labels, padding, pad_id)?;
        let length = batch.shape()[1];
        let (mut position_ids, mut segments) = (vec![], vec![]);
        for cuts in cuts {
            let places = cuts.iter().flat_map(|&tokens| 0..tokens as i32);
            let places: Vec<_> = places.collect();
            padding.push(&mut position_ids, places.into_iter(), length, 0);
            let of_row = (1..).zip(cuts).flat_map(|(segment, &tokens)| std::iter::repeat_n(segment, tokens));
            let of_row: Vec<i32> = of_row.collect();
            padding.push(&mut segments, of_row.into_iter(), length, 0);
        }
        batch.position_ids = Some(position_ids);
        batch.segments = Some(segments);
        Ok(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Batch, Encoder, Padding, Side, Tokenizer,
        collators::testing::{drawn, record, text},
        testing,
    };

    fn packing(padding: Padding) -> Packing {
        let tokenizer = Arc::new(Tokenizer::characters("abcdefgh").unwrap());
        Packing::new(CausalLm::new(Encoder::new(tokenizer)).padding(padding).pad_id(7), 5)
    }

    fn pack(samples: &[(&[u32], usize)]) -> Pack {
        samples
            .iter()
            .map(|&(ids, prompt)| Arc::new(CausalSample { ids: ids.to_vec(), prompt, ..Default::default() }))
            .collect()
    }

    #[test]
    fn padded_rows() {
        let packs = [pack(&[(&[1, 2], 0), (&[], 0), (&[3, 4, 5], 2)]), pack(&[(&[6], 0)])];
        let task = packing(Padding::default());
        let batch = task.collate(&drawn(packs.clone())).unwrap();
        assert_eq!(batch.host_ids(), [1, 2, 3, 4, 5, 6, 7, 7, 7, 7]);
        let none = IGNORE;
        assert_eq!(batch.host_labels(), [none, 2, none, none, 5, none, none, none, none, none]);
        assert_eq!(batch.host_position_ids().unwrap(), [0, 1, 0, 1, 2, 0, 0, 0, 0, 0]);
        assert_eq!(batch.host_segments().unwrap(), [1, 1, 3, 3, 3, 1, 0, 0, 0, 0]);
        assert_eq!((batch.items(), batch.tokens(), batch.samples()), (2, 6, 2));
        let [rows, length] = batch.shape();
        assert_eq!(task.padded(&packs.map(Arc::new)), rows * length);
    }

    #[test]
    fn a_mask_of_blocks() {
        let task = packing(Padding::default().side(Side::Left));
        let packs = [pack(&[(&[1, 2, 3, 4], 0)]), pack(&[(&[1], 0), (&[2, 3], 0)])];
        let batch = task.collate(&drawn(packs)).unwrap();
        assert_eq!(&batch.host_segments().unwrap()[4..], [0, 1, 2, 2]);
        let mask = batch.block_mask(&testing::device()).unwrap();
        assert_eq!(mask.dims(), [2, 4, 4]);
        let mask: Vec<bool> = mask.into_data().iter().collect();
        assert_eq!(mask[..16], [true; 16]);
        let block = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]];
        assert_eq!(mask[16..], block.concat().into_iter().map(|one| one == 1).collect::<Vec<_>>());
    }

    #[test]
    fn a_sample_too_long_for_a_row() {
        let task = packing(Padding::default());
        let error = task.collate(&drawn([pack(&[]), pack(&[(&[1, 2, 3], 0), (&[1, 2, 3], 0)])])).unwrap_err();
        assert!(matches!(error, DataError::Sample(SampleError::RowTooLong { row: 1, tokens: 6, length: 5 })));
        assert_eq!(task.encode(&record(vec![("text", text("abcde"))])).unwrap().len(), 1);
        assert!(task.encode(&record(vec![("text", text("abcdef"))])).is_err());
    }

    #[test]
    fn empty_inputs() {
        let task = packing(Padding::default());
        assert!(task.collate(&[]).unwrap().block_mask(&testing::device()).is_some());
        assert_eq!(task.collate(&drawn([pack(&[])])).unwrap().shape(), [1, 0]);
    }
}
