//! What a run trains and evaluates on.

use std::fmt;
use std::sync::Arc;

use firebrick_datasets::{Amount, Batch, Batches, DataError, Fingerprint, Tokenizer};
use serde::{Deserialize, Serialize};

/// A shared stream of batches of one type.
pub(crate) type Stream<B> = Arc<dyn Batches<Batch = B>>;

/// The data of a run: a stream to train on, perhaps one to evaluate on, and how it is cut.
///
/// ```
/// use firebrick::{Data, datasets::{Tokenizer, Windows}};
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
    pub(crate) train: Stream<B>,
    pub(crate) valid: Option<Stream<B>>,
    pub(crate) micro_batch: Amount,
    pub(crate) workers: usize,
    pub(crate) fingerprints: Fingerprints,
}

/// What the data of a run is known by, as far as it is: checkpoints keep it, so that a run that goes on notices other
/// data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fingerprints {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train: Option<Fingerprint>,
    /// Of data for evaluation that is not a part of the training data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid: Option<Fingerprint>,
    /// What made the tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<Fingerprint>,
}

impl<B: Batch> Data<B> {
    /// Trains on this stream, 8 samples in a micro-batch, collated ahead by one worker thread.
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
    pub fn valid(mut self, valid: impl Batches<Batch = B>) -> Self {
        self.valid = Some(Arc::new(valid));
        self
    }

    /// Samples that go through the model at once.
    pub fn micro_batch(mut self, samples: usize) -> Self {
        self.micro_batch = Amount::Samples(samples);
        self
    }

    /// Instead of a number of samples, as many as have at most so many tokens, padding included.
    /// The global batch is then bounded by as many times this as it has micro-batches; it is cut
    /// first, so a window may need more micro-batches. On several ranks
    /// [`Accumulate`](crate::Accumulate) must therefore sum them, at least as `Accumulate(1)`.
    pub fn micro_tokens(mut self, tokens: usize) -> Self {
        self.micro_batch = Amount::Tokens(tokens);
        self
    }

    /// Threads that collate batches ahead of the trainer; with 0 it collates them itself. The
    /// batches are the same.
    pub fn workers(mut self, threads: usize) -> Self {
        self.workers = threads;
        self
    }

    /// What the training data is known by. Checkpoints keep it, and a run that goes on with other data is refused unless
    /// the change is [allowed](crate::Trainer::allow_changes). A [`Fingerprinted`](firebrick_datasets::Fingerprinted)
    /// reader takes it while it reads.
    ///
    /// ```
    /// use firebrick::{Data, datasets::{Fingerprint, Tokenizer, Windows}};
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

    /// What the data for evaluation is known by, which tells the best model: as
    /// [`fingerprint`](Self::fingerprint).
    pub fn valid_fingerprint(mut self, fingerprint: Fingerprint) -> Self {
        self.fingerprints.valid = Some(fingerprint);
        self
    }

    /// What made the tokens. Checkpoints keep its fingerprint, and a run goes on with no other.
    ///
    /// # Errors
    ///
    /// [`DataError::TokenizerFailed`] if it cannot be written as JSON.
    pub fn tokenizer(mut self, tokenizer: &Tokenizer) -> Result<Self, DataError> {
        self.fingerprints.tokenizer = Some(Fingerprint::of(tokenizer.fingerprint()?));
        Ok(self)
    }

    pub(crate) fn known_by(self, fingerprints: Fingerprints) -> Self {
        Self { fingerprints, ..self }
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
