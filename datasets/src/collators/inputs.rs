//! The inputs of an encoder model.

use std::ops::Range;

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use serde::{Deserialize, Serialize};

use crate::{
    DataError, Encoding, Padding, Tokenizer,
    token_batch::{signed, signed_row},
};

/// One row of [`Inputs`] before padding.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Tokens {
    /// The token ids.
    pub ids: Vec<u32>,
    /// The segment of each id; see [`Encoding::type_ids`].
    pub type_ids: Vec<u32>,
}

impl Tokens {
    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.ids.len()
    }

    /// Returns whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }
}

impl Tokens {
    /// Takes a model's inputs from an encoding. All tokens get segment 0 if the tokenizer's configuration says that its
    /// model reads no segments.
    pub fn of(encoding: Encoding, tokenizer: &Tokenizer) -> Self {
        let mut type_ids = encoding.type_ids;
        if tokenizer.segments() == Some(false) {
            type_ids.fill(0);
        }
        Self { ids: encoding.ids, type_ids }
    }
}

/// The inputs of an encoder model: ids, mask and segments.
///
/// Each is `[batch, length]`, with the same padding. A padding position holds the pad id, `false` and segment 0.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Inputs {
    ids: Vec<i32>,
    mask: Vec<bool>,
    type_ids: Vec<i32>,
    shape: [usize; 2],
}

impl Inputs {
    /// Pads the rows. If all rows are empty, each still gets padding, which the model reads.
    ///
    /// # Errors
    ///
    /// [`SampleError::RowTooLong`](crate::SampleError::RowTooLong) if rows are padded to a fixed length and one is
    /// longer, and [`TokenizerError::IdTooLarge`](crate::TokenizerError::IdTooLarge) if an id is 2³¹ or more.
    pub fn new(rows: &[&Tokens], padding: &Padding, pad_id: u32) -> Result<Self, DataError> {
        let lengths: Vec<_> = rows.iter().map(|row| row.len()).collect();
        let mut shape = padding.shape(&lengths)?;
        if !rows.is_empty() {
            // A row without tokens is read as its padding, so it has some even if all rows are empty.
            shape[1] = shape[1].max(padding.length(1));
        }
        let pad_id = signed(pad_id)?;
        let mut inputs = Self { shape, ..Self::default() };
        for row in rows {
            let ids = signed_row(&row.ids)?;
            padding.push(&mut inputs.ids, ids.into_iter(), shape[1], pad_id);
            padding.push(&mut inputs.mask, std::iter::repeat_n(true, row.len()), shape[1], false);
            let types = signed_row(&row.type_ids)?;
            padding.push(&mut inputs.type_ids, types.into_iter(), shape[1], 0);
        }
        Ok(inputs)
    }

    /// Returns some of the rows, with the padding that they have here.
    ///
    /// # Panics
    ///
    /// If there are fewer rows.
    pub fn rows(&self, rows: Range<usize>) -> Self {
        let length = self.shape[1];
        let all = rows.start * length..rows.end * length;
        Self {
            ids: self.ids[all.clone()].to_vec(),
            mask: self.mask[all.clone()].to_vec(),
            type_ids: self.type_ids[all].to_vec(),
            shape: [rows.len(), length],
        }
    }

    /// Returns the shape, `[batch, length]`.
    pub fn shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Returns the number of real tokens.
    pub fn tokens(&self) -> usize {
        self.mask.iter().filter(|&&real| real).count()
    }

    /// Returns the ids, row by row.
    pub fn host_ids(&self) -> &[i32] {
        &self.ids
    }

    /// Returns whether each token is real, row by row.
    pub fn host_mask(&self) -> &[bool] {
        &self.mask
    }

    /// Returns the segments, row by row.
    pub fn host_type_ids(&self) -> &[i32] {
        &self.type_ids
    }

    /// Returns the ids as an integer tensor `[batch, length]`.
    pub fn ids(&self, device: &Device) -> Tensor<2, Int> {
        Tensor::from_data(TensorData::new(self.ids.clone(), self.shape), device)
    }

    /// Returns the mask as a boolean tensor `[batch, length]`: `true` for a real token, `false` for padding.
    ///
    /// Burn's attention takes the opposite as its `mask_pad`: give it `mask.bool_not()`.
    pub fn mask(&self, device: &Device) -> Tensor<2, Bool> {
        Tensor::from_data(TensorData::new(self.mask.clone(), self.shape), device)
    }

    /// Returns the segments (BERT's token types) as an integer tensor `[batch, length]`.
    pub fn type_ids(&self, device: &Device) -> Tensor<2, Int> {
        Tensor::from_data(TensorData::new(self.type_ids.clone(), self.shape), device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Side;
    use crate::testing;

    #[test]
    fn padded_at_the_left() {
        let short = Tokens { ids: vec![5], type_ids: vec![1] };
        let long = Tokens { ids: vec![6, 7], type_ids: vec![0, 1] };
        let inputs = Inputs::new(&[&short, &long], &Padding::default().side(Side::Left), 9).unwrap();
        let device = testing::device();
        assert_eq!(inputs.ids(&device).into_data().iter::<i64>().collect::<Vec<_>>(), [9, 5, 6, 7]);
        assert_eq!(inputs.type_ids(&device).into_data().iter::<i64>().collect::<Vec<_>>(), [0, 1, 0, 1]);
        let mask: Vec<bool> = inputs.mask(&device).into_data().iter().collect();
        assert_eq!(mask, [false, true, true, true]);
        assert_eq!((inputs.shape(), inputs.tokens()), ([2, 2], 3));
    }

    #[test]
    fn empty_inputs() {
        let inputs = Inputs::new(&[], &Padding::default(), 0).unwrap();
        assert_eq!(inputs.mask(&testing::device()).dims(), [0, 0]);
        let inputs = Inputs::new(&[&Tokens::default()], &Padding::default(), 0).unwrap();
        // A model reads the padding of a row without tokens, with other rows or alone.
        assert_eq!(inputs.ids(&testing::device()).dims(), [1, 1]);
        assert_eq!(inputs.host_mask(), [false]);
    }
}
