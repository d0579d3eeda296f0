//! Padded sources and targets.

use std::sync::Arc;

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use super::Inputs;
use crate::{Batch, IGNORE};

/// Padded sources and targets.
///
/// The source is `[batch, source length]`, see [`Inputs`]; everything about the target is `[batch, target length]`.
/// Decoder inputs and labels are already shifted: the model's prediction at a column is compared with the label of the
/// same column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seq2SeqBatch {
    pub(super) source: Inputs,
    pub(super) decoder_ids: Vec<i32>,
    pub(super) decoder_mask: Vec<bool>,
    pub(super) labels: Vec<i32>,
    pub(super) texts: Vec<Arc<str>>,
    pub(super) shape: [usize; 2],
}

impl Seq2SeqBatch {
    /// Returns the encoder's inputs.
    pub fn source(&self) -> &Inputs {
        &self.source
    }

    /// Returns the shape of the target, `[batch, target length]`.
    pub fn target_shape(&self) -> [usize; 2] {
        self.shape
    }

    /// Returns the decoder's input ids, row by row.
    pub fn host_decoder_ids(&self) -> &[i32] {
        &self.decoder_ids
    }

    /// Returns the decoder's mask, row by row: `true` for a real token.
    pub fn host_decoder_mask(&self) -> &[bool] {
        &self.decoder_mask
    }

    /// Returns the labels, row by row.
    pub fn host_labels(&self) -> &[i32] {
        &self.labels
    }

    /// Returns the text of each target as in its record: complete even if the labels are cut or words have no token.
    /// Generated text is compared with it.
    pub fn host_targets(&self) -> &[Arc<str>] {
        &self.texts
    }

    /// Returns the decoder's input ids as an integer tensor `[batch, target length]`.
    pub fn decoder_ids(&self, device: &Device) -> Tensor<2, Int> {
        Tensor::from_data(TensorData::new(self.decoder_ids.clone(), self.shape), device)
    }

    /// Returns the decoder's mask as a boolean tensor `[batch, target length]`: `true` where the target has a token,
    /// that is, where the decoder has one to predict; `false` for padding.
    ///
    /// Burn's attention takes the opposite as its `mask_pad`: give it `mask.bool_not()`.
    pub fn decoder_mask(&self, device: &Device) -> Tensor<2, Bool> {
        Tensor::from_data(TensorData::new(self.decoder_mask.clone(), self.shape), device)
    }

    /// Returns the labels as an integer tensor `[batch, target length]`.
    pub fn labels(&self, device: &Device) -> Tensor<2, Int> {
        Tensor::from_data(TensorData::new(self.labels.clone(), self.shape), device)
    }
}

impl Batch for Seq2SeqBatch {
    fn items(&self) -> usize {
        self.labels.iter().filter(|&&label| label != IGNORE).count()
    }

    fn samples(&self) -> usize {
        self.shape[0]
    }

    /// The real tokens of sources and targets.
    fn tokens(&self) -> usize {
        self.source.tokens() + self.decoder_mask.iter().filter(|&&real| real).count()
    }
}
