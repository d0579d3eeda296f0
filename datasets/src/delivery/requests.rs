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
    /// The cursor after the window, on the window's last micro-batch.
    pub closes_window: Option<Cursor>,
}

/// Yields the micro-batches after a cursor, without end.
///
/// They come in windows: the micro-batches whose gradients make up one optimizer step. A window is a global batch, or a
/// rank's part of it, as [`Cut`] defines it. It never crosses the end of an epoch, so the last window of an epoch may
/// be smaller. The last micro-batch of a window [closes](Request::closes_window) it.
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
/// assert_eq!((first.positions, first.closes_window), (0..2, None));
/// assert_eq!(second.positions, 2..4);
/// assert_eq!(second.closes_window, Some(Cursor { epoch: 0, consumed: 4 }));
///
/// let third = requests.next().unwrap();
/// assert_eq!(third.positions, 4..5);
/// assert_eq!(third.closes_window, Some(Cursor { epoch: 1, consumed: 0 }));
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Requests<B> {
    batches: B,
    cut: Cut,
    /// The epoch of the open window.
    epoch: u64,
    /// The micro-batches of the open window that have not been requested yet.
    left: VecDeque<Range<usize>>,
    /// The cursor after the open window.
    after: Cursor,
    failed: bool,
}

impl<B: Batches> Requests<B> {
    /// Creates the requests from `cursor` on.
    pub fn new(batches: B, cursor: Cursor, cut: Cut) -> Self {
        Self { batches, cut, epoch: cursor.epoch, left: VecDeque::new(), after: cursor, failed: false }
    }

    /// Opens the window at the cursor.
    fn open_window(&mut self) -> Result<(), DataError> {
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
            && let Err(error) = self.open_window()
        {
            self.failed = true;
            return Some(Err(error));
        }
        let positions = self.left.pop_front()?;
        let closes_window = self.left.is_empty().then_some(self.after);
        Some(Ok(Request { epoch: self.epoch, positions, closes_window }))
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

    /// Cuts windows of `per_window` micro-batches of `micro` samples.
    fn cut(micro: usize, per_window: usize) -> Cut {
        Cut::new(Amount::Samples(micro * per_window), Amount::Samples(micro)).unwrap()
    }

    #[test]
    fn a_window_of_fewer_samples_at_the_end() {
        let requests = Requests::new(Epochs(vec![11]), cursor(3, 6), cut(2, 3));
        let shown: Vec<_> = requests
            .map(Result::unwrap)
            .take(4)
            .map(|request| (request.epoch, request.positions, request.closes_window))
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
        fn training_resumes_at_any_closed_window(
            samples in prop::collection::vec(1_usize..30, 1..4),
            micro_batch in 1_usize..6, per_window in 1_usize..5, windows in 1_usize..20,
        ) {
            let epochs = Epochs(samples);
            let mut expected = cursor(0, 0);
            let mut left = windows;
            let mut requests =
                Requests::new(epochs.clone(), expected, cut(micro_batch, per_window));
            while left > 0 {
                let request = requests.next().unwrap().unwrap();
                prop_assert_eq!(request.epoch, expected.epoch);
                prop_assert_eq!(request.positions.start, expected.consumed);
                prop_assert!((1..=micro_batch).contains(&request.positions.len()));
                expected.consumed = request.positions.end;
                if expected.consumed == epochs.samples(expected.epoch) {
                    expected = cursor(expected.epoch + 1, 0);
                    prop_assert!(request.closes_window.is_some());
                }
                if let Some(after) = request.closes_window {
                    prop_assert_eq!(after, expected);
                    left -= 1;
                }
            }
            let resumed = Requests::new(epochs, expected, cut(micro_batch, per_window));
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
