//! Sources and targets, padded.

use std::sync::Arc;

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

use super::{IGNORE, Inputs};
use crate::Batch;

/// Sources and targets, padded.
///
/// The source is `[batch, source length]`, see [`Inputs`]; all about the target is
/// `[batch, target length]`. Decoder inputs and labels are shifted already: what the model predicts
/// at a column is compared with the label of the same column.
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
    /// What the encoder reads.
    pub fn source(&self) -> &Inputs {
        &self.source
    }

    /// `[batch, target length]`.
    pub fn target_shape(&self) -> [usize; 2] {
        self.shape
    }

    /// What the decoder reads, row after row.
    pub fn host_decoder_ids(&self) -> &[i32] {
        &self.decoder_ids
    }

    /// Whether the decoder reads a real token, row after row.
    pub fn host_decoder_mask(&self) -> &[bool] {
        &self.decoder_mask
    }

    /// The labels, row after row.
    pub fn host_labels(&self) -> &[i32] {
        &self.labels
    }

    /// What each target says, as its record has it: whole where the labels are cut, and with the words
    /// that have no token. What a model writes is compared with it.
    pub fn host_targets(&self) -> &[Arc<str>] {
        &self.texts
    }

    /// What the decoder reads, a tensor of integers `[batch, target length]`.
    pub fn decoder_ids(&self, device: &Device) -> Tensor<2, Int> {
        Tensor::from_data(TensorData::new(self.decoder_ids.clone(), self.shape), device)
    }

    /// A tensor of booleans `[batch, target length]`: `true` where a target has a token, that is,
    /// where the decoder has one to predict; `false` for padding.
    ///
    /// Burn's attention takes the opposite as its `mask_pad`: give it `mask.bool_not()`.
    pub fn decoder_mask(&self, device: &Device) -> Tensor<2, Bool> {
        Tensor::from_data(TensorData::new(self.decoder_mask.clone(), self.shape), device)
    }

    /// The labels, a tensor of integers `[batch, target length]`.
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

    /// Those of sources and targets.
    fn tokens(&self) -> usize {
        self.source.tokens() + self.decoder_mask.iter().filter(|&&real| real).count()
    }
}
