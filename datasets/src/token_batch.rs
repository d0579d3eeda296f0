//! Rows of token ids with labels.

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use crate::{Batch, DataError, Padding, SampleError, TokenizerError};

/// The label of a token that does not count in the loss.
pub const IGNORE: i32 = -100;

/// Padded rows of token ids and their labels.
///
/// All tensors are `[batch, length]`. A padding position holds the pad id, the label [`IGNORE`] and the mask `false`.
///
/// Labels are in the same column as their ids. The model shifts them by one: it compares its prediction at column `t`
/// with the label at column `t + 1`. The first label of a row is therefore never used, and [`items`](Batch::items)
/// counts only the other columns.
///
/// Rows padded on the left and rows of several samples also have [`position_ids`](Self::position_ids); rows of several
/// samples have [`segments`](Self::segments) too. Only a batch without them suits a model that numbers the columns of a
/// row from 0 and lets each token attend to all before it.
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
    pub(crate) position_ids: Option<Vec<i32>>,
    pub(crate) segments: Option<Vec<i32>>,
    shape: [usize; 2],
    items: usize,
    tokens: usize,
}

impl TokenBatch {
    /// Creates a batch in which each token is its own label, for a language model.
    ///
    /// `pad_id` fills short rows on the right. Any id of the vocabulary works: in a causal model, no token attends to
    /// the tokens after it, and padding is never a label.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::IdTooLarge`] if an id is 2³¹ or more.
    pub fn from_rows(rows: Vec<Vec<u32>>, pad_id: u32) -> Result<Self, DataError> {
        let labels = rows.iter().map(|row| signed_row(row)).collect::<Result<_, _>>()?;
        Self::with_labels(rows, labels, pad_id)
    }

    /// Creates a batch with separate labels, for example with a prompt that does not count.
    ///
    /// `labels` has one entry for each id, [`IGNORE`] where a token does not count.
    ///
    /// # Errors
    ///
    /// [`SampleError::LabelRows`] or [`SampleError::LabelLength`] if ids and labels differ in shape,
    /// and [`TokenizerError::IdTooLarge`] if an id is 2³¹ or more.
    pub fn with_labels(rows: Vec<Vec<u32>>, labels: Vec<Vec<i32>>, pad_id: u32) -> Result<Self, DataError> {
        Self::padded(rows, labels, &Padding::default(), pad_id)
    }

    /// Pads rows and their labels with the given `padding`.
    ///
    /// With padding before it, the first token of a row is not a label, since padding would predict it.
    pub(crate) fn padded(
        rows: Vec<Vec<u32>>,
        labels: Vec<Vec<i32>>,
        padding: &Padding,
        pad_id: u32,
    ) -> Result<Self, DataError> {
        if rows.len() != labels.len() {
            return Err(SampleError::LabelRows { ids: rows.len(), labels: labels.len() }.into());
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
                return Err(SampleError::LabelLength { row, ids: ids.len(), labels: labels.len() }.into());
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

    /// Returns the shape, `[batch, length]`: the number of rows, and their length after padding.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Returns the ids, row by row.
    pub fn host_ids(&self) -> &[i32] {
        &self.ids
    }

    /// Returns the labels, row by row.
    pub fn host_labels(&self) -> &[i32] {
        &self.labels
    }

    /// Returns whether each token is real, row by row.
    pub fn host_mask(&self) -> &[bool] {
        &self.mask
    }

    /// Returns the position of each token in its sample, from 0, row by row; 0 for padding.
    pub fn host_position_ids(&self) -> Option<&[i32]> {
        self.position_ids.as_deref()
    }

    /// Returns the number of each token's sample within its row, from 1, row by row; 0 for padding.
    pub fn host_segments(&self) -> Option<&[i32]> {
        self.segments.as_deref()
    }

    /// Returns the ids as an integer tensor `[batch, length]` on `device`.
    pub fn ids(&self, device: &Device) -> Tensor<2, Int> {
        self.integers(&self.ids, device)
    }

    /// Returns the labels as an integer tensor `[batch, length]` on `device`.
    pub fn labels(&self, device: &Device) -> Tensor<2, Int> {
        self.integers(&self.labels, device)
    }

    /// Returns the mask as a boolean tensor `[batch, length]`: `true` for a real token, `false` for padding.
    ///
    /// Burn's attention takes the opposite as its `mask_pad`: give it `mask.bool_not()`.
    pub fn mask(&self, device: &Device) -> Tensor<2, Bool> {
        Tensor::from_data(TensorData::new(self.mask.clone(), self.shape), device)
    }

    /// Returns the position of each token in its sample as an integer tensor `[batch, length]`, or `None` if positions
    /// equal the columns. They differ with padding on the left and with several samples in a row.
    pub fn position_ids(&self, device: &Device) -> Option<Tensor<2, Int>> {
        self.position_ids.as_ref().map(|ids| self.integers(ids, device))
    }

    /// Returns the sample of each token as an integer tensor `[batch, length]`, or `None` if each row holds one sample.
    /// Samples are counted from 1 in each row; 0 is padding.
    pub fn segments(&self, device: &Device) -> Option<Tensor<2, Int>> {
        self.segments.as_ref().map(|segments| self.integers(segments, device))
    }

    /// Returns which columns belong together as a boolean tensor `[batch, length, length]`, `true` if both columns
    /// belong to the same sample, or `None` if each row holds one sample.
    ///
    /// Padding columns belong together, so every token has a token to attend to. The mask ignores order: a causal model
    /// must also mask later tokens. Burn's attention takes the opposite as its `mask_attn`: give it `mask.bool_not()`.
    pub fn block_mask(&self, device: &Device) -> Option<Tensor<3, Bool>> {
        let segments = self.segments(device)?;
        let [rows, length] = self.shape;
        if rows * length == 0 {
            // Burn cannot expand to a dimension of 0.
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

    fn last_is_label(&self) -> bool {
        true
    }
}

/// Converts an id to the signed integer that tensors hold; labels need a sign for [`IGNORE`].
pub(crate) fn signed(id: u32) -> Result<i32, DataError> {
    i32::try_from(id).map_err(|_| DataError::Tokenizer(TokenizerError::IdTooLarge { id }))
}

/// Converts ids to the signed integers that tensors hold.
pub(crate) fn signed_row(ids: &[u32]) -> Result<Vec<i32>, DataError> {
    ids.iter().map(|&id| signed(id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn separate_labels() {
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
        assert!(matches!(error, DataError::Sample(SampleError::LabelRows { ids: 1, labels: 0 })));

        let error = TokenBatch::with_labels(vec![vec![], vec![1]], vec![vec![], vec![1, 2]], 0);
        assert!(matches!(
            error.unwrap_err(),
            DataError::Sample(SampleError::LabelLength { row: 1, ids: 1, labels: 2 })
        ));
    }

    #[test]
    fn ids_beyond_i32() {
        let error = TokenBatch::from_rows(vec![vec![1 << 31]], 0).unwrap_err();
        assert!(matches!(error, DataError::Tokenizer(TokenizerError::IdTooLarge { id: 0x8000_0000 })));
        assert!(TokenBatch::from_rows(vec![vec![1]], u32::MAX).is_err());
    }

    #[test]
    fn empty_batches() {
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
