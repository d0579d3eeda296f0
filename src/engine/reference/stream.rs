//! A stream whose batches have their answers.

use std::ops::Range;
use std::sync::Arc;

use firebrick_datasets::{Batch, Batches, DataError, SampleError};

use super::Answers;
use crate::Data;
use crate::data::Stream;

struct AnsweredStream<B> {
    stream: Stream<B>,
    answers: Arc<Answers>,
}

impl<B: Batch> Batches for AnsweredStream<B> {
    type Batch = B;

    fn samples(&self, epoch: u64) -> usize {
        self.stream.samples(epoch)
    }

    fn batch(&self, epoch: u64, positions: Range<usize>) -> Result<B, DataError> {
        let start = positions.start;
        let mut batch = self.stream.batch(epoch, positions)?;
        if let Some(compared) = batch.compared() {
            let mut numbers = Vec::new();
            for (at, key) in compared.keys().into_iter().enumerate() {
                let unknown = || SampleError::NotAsked { epoch, position: start + at };
                numbers.extend(self.answers.of(key).ok_or_else(unknown)?);
            }
            batch.answered(numbers);
        }
        Ok(batch)
    }

    fn padded_tokens(&self, epoch: u64, positions: Range<usize>) -> Result<usize, DataError> {
        self.stream.padded_tokens(epoch, positions)
    }
}

impl Answers {
    /// Gives the batches of a run's data their answers.
    pub fn give<B: Batch>(self, data: Data<B>) -> Data<B> {
        let answers = Arc::new(self);
        let answered = |stream: Stream<B>| -> Stream<B> {
            Arc::new(AnsweredStream { stream, answers: answers.clone() })
        };
        Data { train: answered(data.train.clone()), valid: data.valid.clone().map(answered), ..data }
    }
}
