//! The next micro-batches, from a training position.

use std::{collections::VecDeque, ops::Range};

use serde::{Deserialize, Serialize};

use crate::{Batches, Cut, DataError, SampleError};

/// One micro-batch to compute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The epoch.
    pub epoch: u64,
    /// The positions of the samples in the epoch's order.
    pub positions: Range<usize>,
    /// The cursor after the optimizer step, on the last micro-batch of the step.
    pub ends_step: Option<Cursor>,
}

/// Yields the micro-batches after a cursor, without end.
///
/// The gradients of several micro-batches in a row make up one optimizer step. Their samples are a global batch, or a
/// rank's part of it, as [`Cut`] defines it. It never crosses the end of an epoch, so the last one of an epoch may be
/// smaller. The last micro-batch of a step [ends](Request::ends_step) it.
///
/// # Errors
///
/// An item is [`SampleError::EmptyEpoch`] if an epoch has no samples, [`SampleError::OutOfRange`] if the cursor's epoch
/// has no samples left, or an error of [`Cut`]. Nothing follows an error.
///
/// # Example
///
/// ```
/// use firebrick_datasets::{Amount, Cursor, Cut, Requests, Windows};
///
/// let five = Windows::new(vec![0; 6], 1)?;
/// let cut = Cut::new(Amount::Samples(4), Amount::Samples(2))?;
/// let mut requests = Requests::new(five, Cursor::default(), cut).map(Result::unwrap);
///
/// let (first, second) = (requests.next().unwrap(), requests.next().unwrap());
/// assert_eq!((first.positions, first.ends_step), (0..2, None));
/// assert_eq!(second.positions, 2..4);
/// assert_eq!(second.ends_step, Some(Cursor { epoch: 0, consumed: 4 }));
///
/// let third = requests.next().unwrap();
/// assert_eq!(third.positions, 4..5);
/// assert_eq!(third.ends_step, Some(Cursor { epoch: 1, consumed: 0 }));
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Requests<B> {
    batches: B,
    cut: Cut,
    /// The epoch of the current step.
    epoch: u64,
    /// The micro-batches of the current step that have not been requested yet.
    left: VecDeque<Range<usize>>,
    /// The cursor after the current step.
    after: Cursor,
    failed: bool,
}

impl<B: Batches> Requests<B> {
    /// Creates the requests from `cursor` on.
    pub fn new(batches: B, cursor: Cursor, cut: Cut) -> Self {
        Self { batches, cut, epoch: cursor.epoch, left: VecDeque::new(), after: cursor, failed: false }
    }

    /// Begins the step at the cursor.
    fn begin_step(&mut self) -> Result<(), DataError> {
        let Cursor { epoch, consumed } = self.after;
        let samples = self.batches.samples(epoch);
        if samples == 0 {
            return Err(SampleError::EmptyEpoch { epoch }.into());
        }
        if consumed >= samples {
            return Err(DataError::out_of_range(epoch, consumed, samples));
        }
        let global = self.cut.global_batch(&self.batches, epoch, consumed, samples)?;
        self.left = self.cut.micro_batches(&self.batches, epoch, &global)?.into();
        self.epoch = epoch;
        self.after = if global.end == samples {
            Cursor { epoch: epoch.saturating_add(1), consumed: 0 }
        } else {
            Cursor { epoch, consumed: global.end }
        };
        Ok(())
    }
}

impl<B: Batches> Iterator for Requests<B> {
    type Item = Result<Request, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        if self.left.is_empty()
            && let Err(error) = self.begin_step()
        {
            self.failed = true;
            return Some(Err(error));
        }
        let positions = self.left.pop_front()?;
        let ends_step = self.left.is_empty().then_some(self.after);
        Some(Ok(Request { epoch: self.epoch, positions, ends_step }))
    }
}

/// A position in a stream of samples: everything you must save to resume exactly there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cursor {
    /// The epoch, from 0.
    pub epoch: u64,
    /// The consumed samples of this epoch. Once all are consumed, the cursor moves to the next epoch, so this is always
    /// less than the number of samples in its epoch.
    pub consumed: usize,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::de::IntoDeserializer;
    use serde::de::value::MapDeserializer;

    use super::*;
    use crate::{Amount, TokenBatch};

    /// Epochs with these numbers of samples; the last one repeats.
    #[derive(Debug, Clone)]
    struct Epochs(Vec<usize>);

    impl Batches for Epochs {
        type Batch = TokenBatch;

        fn samples(&self, epoch: u64) -> usize {
            let last = self.0.len() - 1;
            self.0[last.min(epoch as usize)]
        }

        fn batch(&self, _: u64, _: Range<usize>) -> Result<TokenBatch, DataError> {
            TokenBatch::from_rows(vec![], 0)
        }
    }

    fn cursor(epoch: u64, consumed: usize) -> Cursor {
        Cursor { epoch, consumed }
    }

    /// Cuts global batches of `per_step` micro-batches of `micro` samples.
    fn cut(micro: usize, per_step: usize) -> Cut {
        Cut::new(Amount::Samples(micro * per_step), Amount::Samples(micro)).unwrap()
    }

    #[test]
    fn a_global_batch_of_fewer_samples_at_the_end() {
        let requests = Requests::new(Epochs(vec![11]), cursor(3, 6), cut(2, 3));
        let shown: Vec<_> = requests
            .map(Result::unwrap)
            .take(4)
            .map(|request| (request.epoch, request.positions, request.ends_step))
            .collect();
        let expected = [(3, 6..8, None), (3, 8..10, None), (3, 10..11, Some(cursor(4, 0))), (4, 0..2, None)];
        assert_eq!(shown, expected);
    }

    #[test]
    fn an_empty_epoch_ends_the_requests() {
        let mut requests = Requests::new(Epochs(vec![1, 0]), cursor(0, 0), cut(1, 1));
        assert!(requests.next().unwrap().is_ok());
        let error = requests.next().unwrap().unwrap_err();
        assert!(matches!(error, DataError::Sample(SampleError::EmptyEpoch { epoch: 1 })));
        assert!(requests.next().is_none());
    }

    #[test]
    fn a_cursor_beyond_its_epoch() {
        for consumed in [5, 6] {
            let mut requests = Requests::new(Epochs(vec![5]), cursor(2, consumed), cut(1, 1));
            let error = requests.next().unwrap().unwrap_err();
            assert!(matches!(error, DataError::Sample(SampleError::OutOfRange { samples: 5, .. })));
        }
    }

    proptest! {
        #[test]
        fn training_resumes_after_any_step(
            samples in prop::collection::vec(1_usize..30, 1..4),
            micro_batch in 1_usize..6, per_step in 1_usize..5, steps in 1_usize..20,
        ) {
            let epochs = Epochs(samples);
            let mut expected = cursor(0, 0);
            let mut left = steps;
            let mut requests =
                Requests::new(epochs.clone(), expected, cut(micro_batch, per_step));
            while left > 0 {
                let request = requests.next().unwrap().unwrap();
                prop_assert_eq!(request.epoch, expected.epoch);
                prop_assert_eq!(request.positions.start, expected.consumed);
                prop_assert!((1..=micro_batch).contains(&request.positions.len()));
                expected.consumed = request.positions.end;
                if expected.consumed == epochs.samples(expected.epoch) {
                    expected = cursor(expected.epoch + 1, 0);
                    prop_assert!(request.ends_step.is_some());
                }
                if let Some(after) = request.ends_step {
                    prop_assert_eq!(after, expected);
                    left -= 1;
                }
            }
            let resumed = Requests::new(epochs, expected, cut(micro_batch, per_step));
            let resumed: Vec<_> = resumed.take(20).map(Result::unwrap).collect();
            let straight: Vec<_> = requests.take(20).map(Result::unwrap).collect();
            prop_assert_eq!(resumed, straight);
        }
    }

    #[test]
    fn a_saved_cursor_has_two_fields() {
        let fields = [("epoch", 3_u64), ("consumed", 7)].into_iter();
        let saved: MapDeserializer<'_, _, serde::de::value::Error> =
            MapDeserializer::new(fields.map(|(name, value)| (name, value.into_deserializer())));
        assert_eq!(Cursor::deserialize(saved).unwrap(), Cursor { epoch: 3, consumed: 7 });
    }
}
