//! Turns records into samples, and samples into batches.

use std::sync::Arc;

#[cfg(feature = "text")]
use crate::Keeping;
use crate::{Batch, DataError, Record};

/// Turns a task's records into samples, and samples into batches.
///
/// Both are pure functions. [`encode`](Self::encode) is called once for each record if the data is in memory,
/// [`collate`](Self::collate) once for each batch.
///
/// Batches equal those of the data collators of `transformers`: ids, masks, segments and labels, with padding on either
/// side, to a multiple or to a fixed length. `tests/golden.rs` verifies it.
///
/// # Where this differs from `transformers`, and why
///
/// | What | Theirs | Ours | Reason |
/// |---|---|---|---|
/// | Causal: labels of padding | -100 wherever the padding *token* stands | -100 where the *mask* says padding | With GPT-2, whose end token is its padding, a model would never learn to end. |
/// | Causal, padded on the left: first token of a row | a label | -100 | The column before it is padding, and would have to predict it. |
/// | Causal: no padding token | an error | the end token, else the id 0 | No position that counts attends to it. |
/// | Masked: special tokens within the text, such as `[MASK]` | predicted, if the tokenizer's mask of special tokens is used | never predicted | They are not text, and `[MASK]` as its own label teaches nothing. |
/// | Masked: random replacement | any id, special ones too | any id but the special ones | A `[PAD]` or `[CLS]` in the middle of a text never occurs. |
/// | Masked: chance | one generator for each worker, in the order of batches | computed from seed, epoch, sample and position | A run is the same with any number of workers, and can resume anywhere. |
/// | Whole words: what a word is | tokens whose offsets touch, special tokens apart | the tokenizer's words, and white space | Theirs treats a whole T5 text as a word, as `▁` has the space's offset; it splits a character into its bytes, and joins punctuation to words. |
/// | Whole words: padding, and what replaces tokens | rows of different lengths fail; always the mask token | any padding; mask, random or kept, as for tokens | BERT replaces whole words the same way. |
/// | Seq2seq, targets padded on the left: start token | at the first column, before the padding | right before the target | Otherwise padding would predict the target's first token. |
/// | Seq2seq: the part of the target that does not count | the decoder reads padding in its place | the decoder reads it | The answer depends on it. |
/// | Token classification: `B-` to `I-` within a word | by the label's number: odd ones are raised by one | by its name | The numbers need not alternate. |
/// | Unknown labels | whatever the recipe does | an error that names record, field and labels | It finds typos in the data. |
/// | A record in which nothing counts | a row of -100 | no sample, for token classification, masked, causal and seq2seq | It would take a place in the batch and teach nothing. |
/// | Scores with a stride | of pieces | of texts and sentences: words that pieces repeat count once, entities are not cut, and a text has the class of its first piece | `predict` answers for records, and the scores are those of its answers. |
/// | A row longer than the fixed length | an error about nested lists | [`SampleError::RowTooLong`](crate::SampleError::RowTooLong), which names the row and both lengths | It says what to do. |
/// | An empty second text, encoded alone | no pair | a pair, as in their batches | The template should not depend on the text. |
/// | Flattened samples: their numbers | from 0 | from 1 | 0 is padding, which theirs lacks. |
pub trait Collator: Send + Sync + 'static {
    /// A tokenized record.
    type Sample: Send + Sync + 'static;
    /// A padded batch of samples.
    type Batch: Batch;

    /// Returns the samples of one record: usually one; several if a long text is cut with a stride; none if the record
    /// contains nothing to learn from.
    ///
    /// # Errors
    ///
    /// [`ReadError::Record`](crate::ReadError::Record) if a field is missing or of another type, and any error of the
    /// tokenizer.
    fn encode(&self, record: &Record) -> Result<Vec<Self::Sample>, DataError>;

    /// Returns the number of tokens of a sample before padding. Samples are grouped by it.
    fn length(&self, sample: &Self::Sample) -> usize;

    /// Returns the number of tokens of a batch of these samples after padding. Batches are limited by it. It does not
    /// decrease when a sample is added.
    fn padded(&self, samples: &[Arc<Self::Sample>]) -> usize;

    /// Pads the samples to a batch, one row for each, in order. The list may be empty.
    ///
    /// # Errors
    ///
    /// Any error that keeps the samples out of a tensor, such as an id that is too large.
    fn collate(&self, samples: &[Drawn<Self::Sample>]) -> Result<Self::Batch, DataError>;

    /// Returns whether a sample is the first of its record. An evaluation keeps the samples of a record together if the
    /// scores are about records: see [`WholeRecords`](crate::WholeRecords). Default: each sample is scored by itself.
    fn begins_record(&self, sample: &Self::Sample) -> bool {
        let _ = sample;
        true
    }

    /// Returns how samples are kept for later runs on the same data. Default: they are not, and each run encodes the
    /// records again.
    #[cfg(feature = "text")]
    fn keeping(&self) -> Option<Keeping<Self::Sample>> {
        None
    }
}

impl<C: Collator> Collator for Arc<C> {
    type Sample = C::Sample;
    type Batch = C::Batch;

    fn encode(&self, record: &Record) -> Result<Vec<C::Sample>, DataError> {
        (**self).encode(record)
    }

    fn length(&self, sample: &C::Sample) -> usize {
        (**self).length(sample)
    }

    fn padded(&self, samples: &[Arc<C::Sample>]) -> usize {
        (**self).padded(samples)
    }

    fn collate(&self, samples: &[Drawn<C::Sample>]) -> Result<C::Batch, DataError> {
        (**self).collate(samples)
    }

    fn begins_record(&self, sample: &C::Sample) -> bool {
        (**self).begins_record(sample)
    }

    #[cfg(feature = "text")]
    fn keeping(&self) -> Option<Keeping<C::Sample>> {
        (**self).keeping()
    }
}

/// A sample drawn from a stream in an epoch. Both numbers seed its random choices.
#[derive(Debug)]
pub struct Drawn<S> {
    /// The epoch, from 0.
    pub epoch: u64,
    /// The sample's index in the data, independent of its position in the epoch.
    pub index: u64,
    /// The sample.
    pub sample: Arc<S>,
}
