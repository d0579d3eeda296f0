//! The settings with which the model of a run answers texts.

use std::sync::Arc;

use burn::tensor::Device;
use firebrick_datasets::{Amount, Tokenizer};

use super::{Run, SampleConfig};
use crate::RunError;
use firebrick_models::AnyConfig;
use firebrick_models::decoding::Decoding;
use firebrick_models::inference::Inference;
use firebrick_models::pretrained::Folder;
use firebrick_tasks::Writing;

impl Run {
    /// Returns the most tokens of a row that the model is asked about, padding included; `Some(None)` if there is no
    /// limit, and `None` for a causal language model, which reads as much of the end of a text as it can.
    pub(crate) fn asked_rows(&self, tokenizer: &Tokenizer) -> Option<Option<usize>> {
        let reads_end = matches!(self.task.writing(), Some(Writing::Continuation | Writing::Answer));
        (!reads_end).then(|| self.data.longest_row(tokenizer))
    }

    /// Returns the tokens that end a text: those that the folder defines, as in `transformers`; the tokenizer's own, which
    /// follows each text in training; and the one that ends an answer.
    ///
    /// # Errors
    ///
    /// The folder's end tokens cannot be read.
    pub(crate) fn end_tokens(
        &self,
        folder: Option<&Folder>,
        tokenizer: &Tokenizer,
    ) -> Result<Vec<u32>, RunError> {
        let mut tokens = folder.map(Folder::end_tokens).transpose()?.unwrap_or_default();
        for end in tokenizer.special().eos.into_iter().chain(self.end_of_turn(tokenizer)) {
            if !tokens.contains(&end) {
                tokens.push(end);
            }
        }
        Ok(tokens)
    }

    /// Makes texts end at the [end tokens](Self::end_tokens) of the run, unless `decoding` names its own, and have the
    /// tokens that the folder forces.
    ///
    /// # Errors
    ///
    /// The folder's tokens cannot be read.
    pub(super) fn bounded(
        &self,
        decoding: Decoding,
        folder: Option<&Folder>,
        tokenizer: &Tokenizer,
    ) -> Result<Decoding, RunError> {
        let end_tokens = match decoding.end_tokens.is_empty() {
            true => self.end_tokens(folder, tokenizer)?,
            false => decoding.end_tokens,
        };
        let forced = folder.map(Folder::forced_tokens).transpose()?.unwrap_or_default();
        Ok(Decoding { end_tokens, forced_first: forced.first, forced_last: forced.last, ..decoding })
    }

    /// Returns the token that ends an answer in the chat template, if the run's records are conversations.
    pub(super) fn end_of_turn(&self, tokenizer: &Tokenizer) -> Option<u32> {
        (self.task.writing() == Some(Writing::Answer)).then(|| tokenizer.end_of_turn())?
    }

    /// Returns the settings of predictions, with the run's and the folder's [tokens](Self::bounded) for texts.
    ///
    /// # Errors
    ///
    /// The tokenizer lacks the token that the task names as the decoder's first, or the folder's tokens cannot be read.
    pub(crate) fn inference(
        &self,
        config: &AnyConfig,
        folder: Option<&Folder>,
        tokenizer: &Arc<Tokenizer>,
        device: &Device,
        decoding: Decoding,
    ) -> Result<Inference, RunError> {
        let decoding = self.bounded(decoding, folder, tokenizer)?;
        let encoder = self.data.encoder(tokenizer, None);
        // A chat template writes all special tokens.
        let encoder = encoder.special(self.task.writing() != Some(Writing::Answer));
        Ok(Inference {
            encoder: match self.task.predicts_in_parts() {
                true => encoder.stride(self.data.stride.or(Some(0))),
                false => encoder.stride(None),
            },
            padding: self.data.padding(tokenizer),
            rows: match self.batch.amount() {
                Amount::Samples(samples) => samples,
                Amount::Tokens(_) => 16,
            },
            labels: config.label_names().unwrap_or_default(),
            kind: self.task.labels().and_then(|labels| labels.kind).unwrap_or_default(),
            decoding,
            start: self.task.start_id(config.start(), tokenizer)?.unwrap_or(0),
            first: 0,
            among: None,
            tokenizer: tokenizer.clone(),
            device: device.clone(),
        })
    }
}

impl SampleConfig {
    /// Returns the decoding settings of the sample.
    pub(crate) fn decoding(&self, seed: u64) -> Decoding {
        Decoding {
            max_new_tokens: self.tokens,
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            seed,
            ..Decoding::default()
        }
    }
}
