//! What a run trains and evaluates on.

use std::fmt;
use std::sync::Arc;

use firebrick_datasets::{Amount, Batch, Batches};

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
}

impl<B: Batch> Data<B> {
    /// Trains on this stream, 8 samples in a micro-batch, collated ahead by one worker thread.
    pub fn new(train: impl Batches<Batch = B>) -> Self {
        Self { train: Arc::new(train), valid: None, micro_batch: Amount::Samples(8), workers: 1 }
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
}

impl<B> Clone for Data<B> {
    fn clone(&self) -> Self {
        Self {
            train: self.train.clone(),
            valid: self.valid.clone(),
            micro_batch: self.micro_batch,
            workers: self.workers,
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
            .finish()
    }
}
