//! Rows of token ids with their labels.

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use super::{Padding, inputs::signed_row};
use crate::{Batch, DataError};

/// The label of a token that does not count in the loss.
pub const IGNORE: i32 = -100;

/// Rows of token ids and their labels, padded.
///
/// All tensors are `[batch, length]`. A padding position holds the pad id, its label is [`IGNORE`],
/// and the mask is `false` there.
///
/// The labels stand in the same column as their ids. The shift by one is the model's work: it
/// compares what it predicts at column `t` with the label at column `t + 1`. So the first label of
/// a row is never used, and [`items`](Batch::items) counts the other columns only.
///
/// Rows that are padded at the left, and rows of several samples, also have
/// [`position_ids`](Self::position_ids); the latter have [`segments`](Self::segments) too. A model
/// that numbers the columns of a row from 0 and lets each see all before it does without them only
/// where there are none.
///
/// # Example
///
/// ```
/// use burn::tensor::Device;
/// use firebrick_datasets::{Batch, IGNORE, TokenBatch};
///
/// let batch = TokenBatch::from_rows(vec![vec![5, 6, 7], vec![8, 9]], 0)?;
/// assert_eq!(batch.shape(), [2, 3]);
/// assert_eq!(batch.host_ids(), [5, 6, 7, 8, 9, 0]);
/// assert_eq!(batch.host_labels(), [5, 6, 7, 8, 9, IGNORE]);
/// assert_eq!(batch.host_mask(), [true, true, true, true, true, false]);
/// assert_eq!((batch.samples(), batch.tokens(), batch.items()), (2, 5, 3));
///
/// let ids = batch.ids(&Device::flex());
/// assert_eq!(ids.dims(), [2, 3]);
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenBatch {
    ids: Vec<i32>,
    labels: Vec<i32>,
    mask: Vec<bool>,
    position_ids: Option<Vec<i32>>,
    segments: Option<Vec<i32>>,
    shape: [usize; 2],
    items: usize,
    tokens: usize,
}

impl TokenBatch {
    /// A batch in which each token is its own label: for a language model.
    ///
    /// `pad_id` fills the short rows, at the right. Any id of the vocabulary will do: a causal
    /// model does not let a token see what follows it, and padding is never a label.
    ///
    /// # Errors
    ///
    /// [`DataError::IdTooLarge`] if an id is 2³¹ or more.
    pub fn from_rows(rows: Vec<Vec<u32>>, pad_id: u32) -> Result<Self, DataError> {
        let labels = rows.iter().map(|row| signed_row(row)).collect::<Result<_, _>>()?;
        Self::with_labels(rows, labels, pad_id)
    }

    /// A batch with labels of its own, for instance with a prompt that does not count.
    ///
    /// `labels` has one entry for each id, [`IGNORE`] where a token does not count.
    ///
    /// # Errors
    ///
    /// [`DataError::LabelRows`] or [`DataError::LabelLength`] if ids and labels differ in shape,
    /// and [`DataError::IdTooLarge`] if an id is 2³¹ or more.
    pub fn with_labels(rows: Vec<Vec<u32>>, labels: Vec<Vec<i32>>, pad_id: u32) -> Result<Self, DataError> {
        Self::padded(rows, labels, &Padding::default(), pad_id)
    }

    /// Rows with their labels, padded as `padding` says.
    ///
    /// With padding before it, the first token of a row is not a label: padding would predict it.
    pub(super) fn padded(
        rows: Vec<Vec<u32>>,
        labels: Vec<Vec<i32>>,
        padding: &Padding,
        pad_id: u32,
    ) -> Result<Self, DataError> {
        if rows.len() != labels.len() {
            return Err(DataError::LabelRows { ids: rows.len(), labels: labels.len() });
        }
        let lengths: Vec<_> = rows.iter().map(Vec::len).collect();
        let shape @ [_, length] = padding.shape(&lengths)?;
        let pad_id = signed(pad_id)?;
        let tokens = lengths.iter().sum();
        let mut batch = Self {
            ids: Vec::with_capacity(rows.len() * length),
            labels: Vec::with_capacity(rows.len() * length),
            mask: Vec::with_capacity(rows.len() * length),
            position_ids: None,
            segments: None,
            shape,
            items: 0,
            tokens,
        };
        for (row, (ids, mut labels)) in rows.iter().zip(labels).enumerate() {
            if ids.len() != labels.len() {
                return Err(DataError::LabelLength { row, ids: ids.len(), labels: labels.len() });
            }
            if let Some(first) = labels.first_mut()
                && padding.is_left()
                && ids.len() < length
            {
                *first = IGNORE;
            }
            batch.items += labels.iter().skip(1).filter(|&&l| l != IGNORE).count();
            padding.push(&mut batch.ids, signed_row(ids)?.into_iter(), length, pad_id);
            padding.push(&mut batch.labels, labels.into_iter(), length, IGNORE);
            padding.push(&mut batch.mask, std::iter::repeat_n(true, ids.len()), length, false);
        }
        if padding.is_left() {
            let mut position_ids = Vec::with_capacity(rows.len() * length);
            for row in &rows {
                padding.push(&mut position_ids, 0..row.len() as i32, length, 0);
            }
            batch.position_ids = Some(position_ids);
        }
        Ok(batch)
    }

    /// Rows of several samples. `cuts` has the lengths of the samples of each row; the first label
    /// of each sample must not count.
    pub(super) fn packed(
        rows: Vec<Vec<u32>>,
        labels: Vec<Vec<i32>>,
        cuts: &[Vec<usize>],
        padding: &Padding,
        pad_id: u32,
    ) -> Result<Self, DataError> {
        let mut batch = Self::padded(rows, labels, padding, pad_id)?;
        let (mut position_ids, mut segments) = (vec![], vec![]);
        for cuts in cuts {
            let places = cuts.iter().flat_map(|&tokens| 0..tokens as i32);
            let places: Vec<_> = places.collect();
            padding.push(&mut position_ids, places.into_iter(), batch.shape[1], 0);
            let of_row = (1..).zip(cuts).flat_map(|(segment, &tokens)| std::iter::repeat_n(segment, tokens));
            let of_row: Vec<i32> = of_row.collect();
            padding.push(&mut segments, of_row.into_iter(), batch.shape[1], 0);
        }
        batch.position_ids = Some(position_ids);
        batch.segments = Some(segments);
        Ok(batch)
    }

    /// `[batch, length]`: the number of rows, and their length after padding.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// The ids, row after row.
    pub fn host_ids(&self) -> &[i32] {
        &self.ids
    }

    /// The labels, row after row.
    pub fn host_labels(&self) -> &[i32] {
        &self.labels
    }

    /// Whether each token is real, row after row.
    pub fn host_mask(&self) -> &[bool] {
        &self.mask
    }

    /// The place of each token in its sample, from 0, row after row; 0 for padding.
    pub fn host_position_ids(&self) -> Option<&[i32]> {
        self.position_ids.as_deref()
    }

    /// The sample of each token in its row, from 1, row after row; 0 for padding.
    pub fn host_segments(&self) -> Option<&[i32]> {
        self.segments.as_deref()
    }

    /// The ids as a tensor of integers `[batch, length]` on `device`.
    pub fn ids(&self, device: &Device) -> Tensor<2, Int> {
        self.integers(&self.ids, device)
    }

    /// The labels as a tensor of integers `[batch, length]` on `device`.
    pub fn labels(&self, device: &Device) -> Tensor<2, Int> {
        self.integers(&self.labels, device)
    }

    /// A tensor of booleans `[batch, length]`: `true` for a real token, `false` for padding.
    ///
    /// Burn's attention takes the opposite as its `mask_pad`: give it `mask.bool_not()`.
    pub fn mask(&self, device: &Device) -> Tensor<2, Bool> {
        Tensor::from_data(TensorData::new(self.mask.clone(), self.shape), device)
    }

    /// The place of each token in its sample, a tensor of integers `[batch, length]`, if places are
    /// not simply the columns: with padding at the left, or with several samples in a row.
    pub fn position_ids(&self, device: &Device) -> Option<Tensor<2, Int>> {
        self.position_ids.as_ref().map(|ids| self.integers(ids, device))
    }

    /// The sample of each token, a tensor of integers `[batch, length]`, if rows hold several: they
    /// are counted from 1 in each row, and 0 is padding.
    pub fn segments(&self, device: &Device) -> Option<Tensor<2, Int>> {
        self.segments.as_ref().map(|segments| self.integers(segments, device))
    }

    /// Which columns belong together, if rows hold several samples: a tensor of booleans
    /// `[batch, length, length]`, `true` where both columns are of one sample.
    ///
    /// Padding belongs with padding, so that no token is left without one to attend to. It says
    /// nothing of order: a causal model masks what follows as well. Burn's attention takes the
    /// opposite as its `mask_attn`: give it `mask.bool_not()`.
    pub fn block_mask(&self, device: &Device) -> Option<Tensor<3, Bool>> {
        let segments = self.segments(device)?;
        let [rows, length] = self.shape;
        if rows * length == 0 {
            // Burn does not expand to a dimension of 0.
            let nothing = TensorData::new(Vec::<bool>::new(), [rows, length, length]);
            return Some(Tensor::from_data(nothing, device));
        }
        let shape = [rows, length, length];
        let of_query = segments.clone().unsqueeze_dim::<3>(2).expand(shape);
        Some(of_query.equal(segments.unsqueeze_dim::<3>(1).expand(shape)))
    }

    fn integers(&self, values: &[i32], device: &Device) -> Tensor<2, Int> {
        Tensor::from_data(TensorData::new(values.to_vec(), self.shape), device)
    }
}

impl Batch for TokenBatch {
    fn items(&self) -> usize {
        self.items
    }

    fn samples(&self) -> usize {
        self.shape[0]
    }

    fn tokens(&self) -> usize {
        self.tokens
    }
}

/// The id as tensors hold it: as a signed number, since labels need [`IGNORE`].
pub(super) fn signed(id: u32) -> Result<i32, DataError> {
    i32::try_from(id).map_err(|_| DataError::IdTooLarge { id })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collators::testing;

    #[test]
    fn labels_of_its_own() {
        let batch =
            TokenBatch::with_labels(vec![vec![1, 2, 3], vec![4]], vec![vec![1, IGNORE, 3], vec![4]], 9)
                .unwrap();
        assert_eq!(batch.host_ids(), [1, 2, 3, 4, 9, 9]);
        assert_eq!(batch.host_labels(), [1, IGNORE, 3, 4, IGNORE, IGNORE]);
        assert_eq!(batch.items(), 1);
        assert_eq!(batch.tokens(), 4);
    }

    #[test]
    fn mismatched_labels() {
        let error = TokenBatch::with_labels(vec![vec![1]], vec![], 0).unwrap_err();
        assert!(matches!(error, DataError::LabelRows { ids: 1, labels: 0 }));

        let error = TokenBatch::with_labels(vec![vec![], vec![1]], vec![vec![], vec![1, 2]], 0);
        assert!(matches!(error.unwrap_err(), DataError::LabelLength { row: 1, ids: 1, labels: 2 }));
    }

    #[test]
    fn ids_beyond_i32() {
        let error = TokenBatch::from_rows(vec![vec![1 << 31]], 0).unwrap_err();
        assert!(matches!(error, DataError::IdTooLarge { id: 0x8000_0000 }));
        assert!(TokenBatch::from_rows(vec![vec![1]], u32::MAX).is_err());
    }

    #[test]
    fn nothing_in_nothing_out() {
        let batch = TokenBatch::from_rows(vec![], 0).unwrap();
        assert_eq!(batch.shape(), [0, 0]);
        assert_eq!(batch.items() + batch.tokens() + batch.samples(), 0);
        assert_eq!(TokenBatch::from_rows(vec![vec![]], 0).unwrap().shape(), [1, 0]);
    }

    #[test]
    fn tensors() {
        let device = testing::device();
        let batch = TokenBatch::from_rows(vec![vec![1, 2], vec![3]], 7).unwrap();
        let ids: Vec<i64> = batch.ids(&device).into_data().iter().collect();
        let labels: Vec<i64> = batch.labels(&device).into_data().iter().collect();
        assert_eq!(ids, [1, 2, 3, 7]);
        assert_eq!(labels, [1, 2, 3, i64::from(IGNORE)]);
    }
}
