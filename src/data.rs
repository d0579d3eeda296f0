//! The data that a run trains and evaluates on.

use std::fmt;
use std::sync::Arc;

use firebrick_datasets::{Amount, Batch, Batches, Fingerprint};
#[cfg(feature = "text")]
use firebrick_datasets::{DataError, Tokenizer};
use serde::{Deserialize, Serialize};

use crate::any_batch::{AnyBatch, AnyBatches};

/// A shared stream of batches of one type.
pub type Stream<B> = Arc<dyn Batches<Batch = B>>;

/// The data of a run: a stream to train on, an optional one to evaluate on, and the size of the micro-batches.
///
/// ```
/// use firebrick::Data;
/// use firebrick::datasets::{Tokenizer, Windows};
///
/// let text = "to be or not to be, that is the question";
/// let tokenizer = Tokenizer::characters(text)?;
/// let (train, valid) = text.split_at(30);
/// let data = Data::new(Windows::new(tokenizer.encode(train)?, 8)?.shuffled(42))
///     .valid(Windows::new(tokenizer.encode(valid)?, 8)?)
///     .micro_batch(4);
/// # Ok::<(), firebrick::datasets::DataError>(())
/// ```
pub struct Data<B> {
    /// What is trained on.
    pub train: Stream<B>,
    /// What is evaluated, if anything.
    pub valid: Option<Stream<B>>,
    pub(crate) micro_batch: Amount,
    pub(crate) workers: usize,
    /// What is known of it.
    pub fingerprints: Fingerprints,
}

/// The known fingerprints of a run's data. Checkpoints store them, so that a resumed run notices changed data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fingerprints {
    /// Of the training data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub train: Option<Fingerprint>,
    /// Of the validation data, unless it is a part of the training data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub valid: Option<Fingerprint>,
    /// Of the tokenizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<Fingerprint>,
}

impl<B: Batch> Data<B> {
    /// Trains on this stream, with 8 samples in a micro-batch and one worker thread that collates ahead.
    pub fn new(train: impl Batches<Batch = B>) -> Self {
        Self {
            train: Arc::new(train),
            valid: None,
            micro_batch: Amount::Samples(8),
            workers: 1,
            fingerprints: Fingerprints::default(),
        }
    }

    /// Evaluates on epoch 0 of this stream.
    pub fn valid(self, valid: impl Batches<Batch = B>) -> Self {
        Self { valid: Some(Arc::new(valid)), ..self }
    }

    /// Sets the number of samples in a micro-batch.
    pub fn micro_batch(self, samples: usize) -> Self {
        Self { micro_batch: Amount::Samples(samples), ..self }
    }

    /// Sets the size of a micro-batch in tokens: it takes as many samples as fit into `tokens`, padding included.
    ///
    /// The global batch is then at most `tokens` times its number of micro-batches. It is cut first, so a step may
    /// need more micro-batches. On several ranks [`Accumulate`](crate::Accumulate) must therefore sum them, at least as
    /// `Accumulate(1)`.
    pub fn micro_tokens(self, tokens: usize) -> Self {
        Self { micro_batch: Amount::Tokens(tokens), ..self }
    }

    /// Sets the number of threads that collate batches ahead of the trainer; with 0 the trainer collates them itself.
    /// The batches are the same.
    pub fn workers(self, threads: usize) -> Self {
        Self { workers: threads, ..self }
    }

    /// Sets the fingerprint of the training data. Checkpoints store it, and a run refuses to resume with other data
    /// unless you [allow](crate::Trainer::allow_changes) the change. A
    /// [`Fingerprinted`](firebrick_datasets::Fingerprinted) reader computes it while it reads.
    ///
    /// ```
    /// use firebrick::Data;
    /// use firebrick::datasets::{Fingerprint, Tokenizer, Windows};
    ///
    /// let text = "to be or not to be, that is the question";
    /// let tokenizer = Tokenizer::characters(text)?;
    /// let windows = Windows::new(tokenizer.encode(text)?, 8)?.shuffled(42);
    /// let data = Data::new(windows).fingerprint(Fingerprint::of(text)).tokenizer(&tokenizer)?;
    /// # Ok::<(), firebrick::datasets::DataError>(())
    /// ```
    pub fn fingerprint(mut self, fingerprint: Fingerprint) -> Self {
        self.fingerprints.train = Some(fingerprint);
        self
    }

    /// Sets the fingerprint of the validation data, which selects the best model. It works as
    /// [`fingerprint`](Self::fingerprint).
    pub fn valid_fingerprint(mut self, fingerprint: Fingerprint) -> Self {
        self.fingerprints.valid = Some(fingerprint);
        self
    }

    /// Sets the fingerprint of what produced the tokens, such as the file of a tokenizer. Checkpoints store it, and a
    /// run resumes with no other.
    pub fn tokenizer_fingerprint(mut self, fingerprint: Fingerprint) -> Self {
        self.fingerprints.tokenizer = Some(fingerprint);
        self
    }

    /// Sets all fingerprints.
    pub fn known_by(self, fingerprints: Fingerprints) -> Self {
        Self { fingerprints, ..self }
    }

    /// Trains on another stream.
    pub fn train_on(self, train: Stream<B>) -> Self {
        Self { train, ..self }
    }

    /// Erases the type of the batches, for an [`AnyModel`](crate::AnyModel).
    pub fn erased(self) -> Data<AnyBatch> {
        let erased = |stream| Arc::new(AnyBatches(stream)) as Stream<AnyBatch>;
        Data {
            train: erased(self.train),
            valid: self.valid.map(erased),
            micro_batch: self.micro_batch,
            workers: self.workers,
            fingerprints: self.fingerprints,
        }
    }

    /// Evaluates nothing.
    pub fn without_valid(self) -> Self {
        Self { valid: None, ..self }
    }
}

#[cfg(feature = "text")]
impl<B: Batch> Data<B> {
    /// Sets the tokenizer that produced the tokens. Checkpoints store its fingerprint, and a run resumes with no other.
    ///
    /// # Errors
    ///
    /// [`TokenizerError::TokenizerFailed`](firebrick_datasets::TokenizerError::TokenizerFailed) if the tokenizer cannot
    /// be written as JSON.
    pub fn tokenizer(self, tokenizer: &Tokenizer) -> Result<Self, DataError> {
        Ok(self.tokenizer_fingerprint(Fingerprint::of(tokenizer.fingerprint()?)))
    }
}

impl<B> Clone for Data<B> {
    fn clone(&self) -> Self {
        Self {
            train: self.train.clone(),
            valid: self.valid.clone(),
            micro_batch: self.micro_batch,
            workers: self.workers,
            fingerprints: self.fingerprints,
        }
    }
}

impl<B: Batch> fmt::Debug for Data<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Data")
            .field("train_samples", &self.train.samples(0))
            .field("valid_samples", &self.valid.as_ref().map(|valid| valid.samples(0)))
            .field("micro_batch", &self.micro_batch)
            .field("workers", &self.workers)
            .field("fingerprints", &self.fingerprints)
            .finish()
    }
}
