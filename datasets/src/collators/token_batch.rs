//! Rows of token ids with their labels.

use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::{Batch, DataError};

/// The label of a token that does not count in the loss.
pub const IGNORE: i32 = -100;

/// Rows of token ids and their labels, padded on the right to the longest row.
///
/// Both are `[batch, length]`. A padding position holds the pad id, and its label is [`IGNORE`].
///
/// The labels stand in the same column as their ids. The shift by one is the model's work: it
/// compares what it predicts at column `t` with the label at column `t + 1`. So the first label of
/// a row is never used, and [`items`](Batch::items) counts the other columns only.
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
/// assert_eq!((batch.samples(), batch.tokens(), batch.items()), (2, 5, 3));
///
/// let ids = batch.ids(&Device::default());
/// assert_eq!(ids.dims(), [2, 3]);
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenBatch {
    ids: Vec<i32>,
    labels: Vec<i32>,
    shape: [usize; 2],
    items: usize,
    tokens: usize,
}

impl TokenBatch {
    /// A batch in which each token is its own label: for a language model.
    ///
    /// `pad_id` fills the short rows. Any id of the vocabulary will do: a causal model does not
    /// let a token see what follows it, and padding is never a label.
    ///
    /// # Errors
    ///
    /// [`DataError::IdTooLarge`] if an id is 2³¹ or more.
    pub fn from_rows(rows: Vec<Vec<u32>>, pad_id: u32) -> Result<Self, DataError> {
        let labels =
            rows.iter().map(|row| row.iter().map(|&id| signed(id)).collect()).collect::<Result<_, _>>()?;
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
        if rows.len() != labels.len() {
            return Err(DataError::LabelRows { ids: rows.len(), labels: labels.len() });
        }
        let length = rows.iter().map(Vec::len).max().unwrap_or(0);
        let pad_id = signed(pad_id)?;
        let mut batch = Self {
            ids: Vec::with_capacity(rows.len() * length),
            labels: Vec::with_capacity(rows.len() * length),
            shape: [rows.len(), length],
            items: 0,
            tokens: 0,
        };
        for (row, (ids, labels)) in rows.iter().zip(labels).enumerate() {
            if ids.len() != labels.len() {
                return Err(DataError::LabelLength { row, ids: ids.len(), labels: labels.len() });
            }
            for &id in ids {
                batch.ids.push(signed(id)?);
            }
            batch.tokens += ids.len();
            batch.items += labels.iter().skip(1).filter(|&&l| l != IGNORE).count();
            batch.labels.extend(labels);

            let padded = (row + 1) * length;
            batch.ids.resize(padded, pad_id);
            batch.labels.resize(padded, IGNORE);
        }
        Ok(batch)
    }

    /// `[batch, length]`: the number of rows, and the length of the longest.
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

    /// The ids as a tensor `[batch, length]` on `device`.
    pub fn ids(&self, device: &Device) -> Tensor<2, Int> {
        Tensor::from_data(TensorData::new(self.ids.clone(), self.shape), device)
    }

    /// The labels as a tensor `[batch, length]` on `device`.
    pub fn labels(&self, device: &Device) -> Tensor<2, Int> {
        Tensor::from_data(TensorData::new(self.labels.clone(), self.shape), device)
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
fn signed(id: u32) -> Result<i32, DataError> {
    i32::try_from(id).map_err(|_| DataError::IdTooLarge { id })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let device = Device::default();
        let batch = TokenBatch::from_rows(vec![vec![1, 2], vec![3]], 7).unwrap();
        let ids: Vec<i64> = batch.ids(&device).into_data().iter().collect();
        let labels: Vec<i64> = batch.labels(&device).into_data().iter().collect();
        assert_eq!(ids, [1, 2, 3, 7]);
        assert_eq!(labels, [1, 2, 3, i64::from(IGNORE)]);
    }
}
