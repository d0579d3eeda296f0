//! Encoder inputs with a label for each token.

use burn::tensor::{Device, Int, Tensor, TensorData};

use super::{Inputs, Tokens};
use crate::{Batch, DataError, IGNORE, Padding, SampleError};

/// Encoder inputs with a label for each token, as made by [`TokenClassification`](super::TokenClassification) and
/// [`MaskedLm`](super::MaskedLm).
///
/// Inputs and labels are `[batch, length]`. A label belongs to the token in its own column; it is [`IGNORE`] for
/// padding and for tokens that do not count in the loss.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabeledBatch {
    inputs: Inputs,
    labels: Vec<i32>,
}

impl LabeledBatch {
    /// Pads rows. Each row has one label for each token.
    pub(crate) fn new(rows: &[(&Tokens, &[i32])], padding: &Padding, pad_id: u32) -> Result<Self, DataError> {
        let tokens: Vec<_> = rows.iter().map(|(tokens, _)| *tokens).collect();
        let inputs = Inputs::new(&tokens, padding, pad_id)?;
        let mut all = Vec::with_capacity(inputs.host_ids().len());
        for (row, (tokens, labels)) in rows.iter().enumerate() {
            if tokens.len() != labels.len() {
                return Err(SampleError::LabelLength { row, ids: tokens.len(), labels: labels.len() }.into());
            }
            padding.push(&mut all, labels.iter().copied(), inputs.shape()[1], IGNORE);
        }
        Ok(Self { inputs, labels: all })
    }

    /// Returns the model's inputs.
    pub fn inputs(&self) -> &Inputs {
        &self.inputs
    }

    /// Returns the labels, row by row.
    pub fn host_labels(&self) -> &[i32] {
        &self.labels
    }

    /// Returns the labels as an integer tensor `[batch, length]`.
    pub fn labels(&self, device: &Device) -> Tensor<2, Int> {
        Tensor::from_data(TensorData::new(self.labels.clone(), self.inputs.shape()), device)
    }
}

impl Batch for LabeledBatch {
    fn items(&self) -> usize {
        self.labels.iter().filter(|&&label| label != IGNORE).count()
    }

    fn samples(&self) -> usize {
        self.inputs.shape()[0]
    }

    fn tokens(&self) -> usize {
        self.inputs.tokens()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn counts() {
        let short = Tokens { ids: vec![5], type_ids: vec![0] };
        let long = Tokens { ids: vec![6, 7], type_ids: vec![0, 0] };
        let rows: [(&Tokens, &[i32]); 2] = [(&short, &[1]), (&long, &[IGNORE, 2])];
        let batch = LabeledBatch::new(&rows, &Padding::default(), 0).unwrap();
        assert_eq!(batch.host_labels(), [1, IGNORE, IGNORE, 2]);
        assert_eq!((batch.items(), batch.samples(), batch.tokens()), (2, 2, 3));
        assert_eq!(batch.labels(&testing::device()).dims(), [2, 2]);

        let error = LabeledBatch::new(&[(&long, &[1])], &Padding::default(), 0).unwrap_err();
        assert!(matches!(error, DataError::Sample(SampleError::LabelLength { row: 0, ids: 2, labels: 1 })));
    }
}
