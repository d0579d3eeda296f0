//! A Burn data set with a batcher, as a stream of batches.

use std::error::Error;
use std::fmt::{self, Debug, Formatter};
use std::ops::Range;
use std::sync::Arc;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::Dataset;
use burn::tensor::Device;
use firebrick_datasets::{Batch, Batches, DataError, Permutation, SampleError};

use crate::Data;

/// A data set and a batcher of Burn's as a stream of batches.
///
/// The order of an epoch is a function of the seed and the epoch, so a run resumes within an epoch, and sees the same
/// samples on any number of ranks. Items are read on the [worker threads](crate::Data::workers) of the run, so decode
/// them in the data set, as `MapperDataset` does. The batcher runs when the model takes the batch, on the model's
/// device.
///
/// The data set must be pure: an index always returns the same item. `SamplerDataset`, which draws at random, is not.
///
/// ```
/// use burn::data::dataloader::batcher::Batcher;
/// use burn::data::dataset::InMemDataset;
/// use burn::tensor::{Device, Tensor};
/// use firebrick::datasets::{Batch, Batches};
/// use firebrick::of_burn::FromBurn;
///
/// struct Stacked;
///
/// impl Batcher<[f32; 2], Tensor<2>> for Stacked {
///     fn batch(&self, items: Vec<[f32; 2]>, device: &Device) -> Tensor<2> {
///         Tensor::<1>::from_floats(items.concat().as_slice(), device).reshape([-1, 2])
///     }
/// }
///
/// let items = InMemDataset::new((0..10).map(|i| [i as f32, 1.0]).collect());
/// let stream = FromBurn::new(items, Stacked).shuffled(42);
/// let batch = stream.batch(0, 4..7)?;
/// assert_eq!((batch.samples(), batch.items()), (3, 3));
/// assert_eq!(batch.on(&Device::flex()).dims(), [3, 2]);
/// # Ok::<(), firebrick::datasets::DataError>(())
/// ```
pub struct FromBurn<I, O> {
    items: Arc<dyn Items<I>>,
    batcher: Arc<dyn Batcher<I, O>>,
    counts: Arc<dyn Counts<I>>,
    seed: Option<u64>,
}

impl<I: Send + 'static, O: 'static> FromBurn<I, O> {
    /// Takes the items in the order of the data set. Each counts as one item of the loss and one token: see
    /// [`counted_by`](Self::counted_by).
    pub fn new<E>(dataset: impl Dataset<I, E> + 'static, batcher: impl Batcher<I, O> + 'static) -> Self
    where
        E: Error + Send + Sync + 'static,
    {
        let items = Arc::new(Typed(dataset, std::marker::PhantomData));
        Self { items, batcher: Arc::new(batcher), counts: Arc::new(EachSample), seed: None }
    }

    /// Shuffles the items with the seed, in a different order in each epoch.
    pub fn shuffled(self, seed: u64) -> Self {
        Self { seed: Some(seed), ..self }
    }

    /// Sets what a sample counts for.
    pub fn counted_by(self, counts: impl Counts<I>) -> Self {
        Self { counts: Arc::new(counts), ..self }
    }

    /// Reads the items at these positions of the epoch's order.
    fn read(&self, epoch: u64, positions: Range<usize>) -> Result<Vec<I>, DataError> {
        let samples = self.items.len();
        if positions.end > samples {
            return Err(SampleError::OutOfRange { epoch, positions, samples }.into());
        }
        let order = self.seed.map(|seed| Permutation::new(samples, seed, epoch));
        let index = |position| order.as_ref().map_or(position, |order| order.at(position));
        self.items.read(positions.map(index).collect())
    }
}

impl<I: Send + 'static, O: 'static> Batches for FromBurn<I, O> {
    type Batch = Collated<I, O>;

    fn samples(&self, _epoch: u64) -> usize {
        self.items.len()
    }

    fn batch(&self, epoch: u64, positions: Range<usize>) -> Result<Collated<I, O>, DataError> {
        let items = self.read(epoch, positions)?;
        let of = |count: fn(&dyn Counts<I>, &I) -> usize| {
            items.iter().map(|item| count(&*self.counts, item)).sum::<usize>()
        };
        let (supervised, tokens) =
            (of(|counts, item| counts.items(item)), of(|counts, item| counts.tokens(item)));
        Ok(Collated { items, supervised, tokens, batcher: self.batcher.clone() })
    }

    /// Counts each sample as long as the longest one.
    fn padded_tokens(&self, epoch: u64, positions: Range<usize>) -> Result<usize, DataError> {
        let items = self.read(epoch, positions)?;
        let longest = items.iter().map(|item| self.counts.tokens(item)).max().unwrap_or(0);
        Ok(longest * items.len())
    }
}

impl<I, O> Clone for FromBurn<I, O> {
    fn clone(&self) -> Self {
        Self {
            items: self.items.clone(),
            batcher: self.batcher.clone(),
            counts: self.counts.clone(),
            seed: self.seed,
        }
    }
}

impl<I, O> Debug for FromBurn<I, O> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromBurn")
            .field("samples", &self.items.len())
            .field("seed", &self.seed)
            .finish_non_exhaustive()
    }
}

/// The seed of the order of Burn's data sets.
pub(super) const SEED: u64 = 42;

impl<I: Send + 'static, O: 'static> Data<Collated<I, O>> {
    /// Trains on a data set of Burn's with its batcher, shuffled with the seed 42: see [`FromBurn`], which has the
    /// other choices. The model takes the batch with [`Collated::on`].
    ///
    /// ```
    /// # use burn::data::dataloader::batcher::Batcher;
    /// # use burn::data::dataset::InMemDataset;
    /// # use burn::tensor::{Device, Tensor};
    /// # struct Stacked;
    /// # impl Batcher<f32, Tensor<1>> for Stacked {
    /// #     fn batch(&self, items: Vec<f32>, device: &Device) -> Tensor<1> {
    /// #         Tensor::from_floats(items.as_slice(), device)
    /// #     }
    /// # }
    /// use firebrick::Data;
    /// use firebrick::of_burn::FromBurn;
    ///
    /// # let (train, valid) = (InMemDataset::new(vec![1.0, 2.0]), InMemDataset::new(vec![3.0]));
    /// let data = Data::from_burn(train, Stacked).valid(FromBurn::new(valid, Stacked)).micro_batch(32);
    /// ```
    pub fn from_burn<E>(dataset: impl Dataset<I, E> + 'static, batcher: impl Batcher<I, O> + 'static) -> Self
    where
        E: Error + Send + Sync + 'static,
    {
        Self::new(FromBurn::new(dataset, batcher).shuffled(SEED))
    }
}

/// What a sample counts for: in the divisor of the loss, and in the throughput. Both default to 1, as for a classifier
/// of images.
///
/// ```
/// use firebrick::of_burn::Counts;
///
/// /// Sentences whose words have labels.
/// struct Words;
///
/// impl Counts<Vec<String>> for Words {
///     fn items(&self, sentence: &Vec<String>) -> usize { sentence.len() }
///     fn tokens(&self, sentence: &Vec<String>) -> usize { sentence.len() }
/// }
/// ```
pub trait Counts<I>: Send + Sync + 'static {
    /// The number of supervised items of the sample, which its loss sums over.
    fn items(&self, sample: &I) -> usize {
        let _ = sample;
        1
    }

    /// The number of its tokens, without padding.
    fn tokens(&self, sample: &I) -> usize {
        let _ = sample;
        1
    }
}

/// Counts each sample as one item and one token.
#[derive(Clone, Copy, Debug, Default)]
pub struct EachSample;

impl<I> Counts<I> for EachSample {}

/// The items of a batch, and the batcher that turns them into tensors.
pub struct Collated<I, O> {
    items: Vec<I>,
    supervised: usize,
    tokens: usize,
    batcher: Arc<dyn Batcher<I, O>>,
}

impl<I, O> Collated<I, O> {
    /// Runs the batcher on a device. Pass the device of the [pass](crate::Pass::device).
    ///
    /// A batcher creates f32. Under [`Amp`](crate::Amp) a layer with bf16 weights needs its input in bf16:
    /// `images.cast(pass.dtype())`.
    pub fn on(self, device: &Device) -> O {
        self.batcher.batch(self.items, device)
    }
}

impl<I: Send + 'static, O: 'static> Batch for Collated<I, O> {
    fn items(&self) -> usize {
        self.supervised
    }

    fn samples(&self) -> usize {
        self.items.len()
    }

    fn tokens(&self) -> usize {
        self.tokens
    }
}

impl<I, O> Debug for Collated<I, O> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collated")
            .field("samples", &self.items.len())
            .field("items", &self.supervised)
            .field("tokens", &self.tokens)
            .finish_non_exhaustive()
    }
}

/// A data set without the type of its error.
trait Items<I>: Send + Sync {
    fn len(&self) -> usize;

    fn read(&self, indices: Vec<usize>) -> Result<Vec<I>, DataError>;
}

struct Typed<D, E>(D, std::marker::PhantomData<fn() -> E>);

impl<I, E: Error + Send + Sync + 'static, D: Dataset<I, E>> Items<I> for Typed<D, E> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn read(&self, indices: Vec<usize>) -> Result<Vec<I>, DataError> {
        let unreadable = |indices| {
            move |source: E| DataError::from(SampleError::Unreadable { indices, source: Box::new(source) })
        };
        self.0.get_many(indices.clone()).map_err(unreadable(indices))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::data::dataset::InMemDataset;
    use burn::data::dataset::transform::{Mapper, MapperDataset, PartialDataset};

    struct Whole;

    impl Batcher<usize, Vec<usize>> for Whole {
        fn batch(&self, items: Vec<usize>, _: &Device) -> Vec<usize> {
            items
        }
    }

    struct OfItself;

    impl Counts<usize> for OfItself {
        fn tokens(&self, sample: &usize) -> usize {
            *sample
        }
    }

    fn read(stream: &FromBurn<usize, Vec<usize>>, epoch: u64, at: Range<usize>) -> Vec<usize> {
        stream.batch(epoch, at).unwrap().on(&Device::flex())
    }

    #[test]
    fn an_epoch_has_each_item_once_in_an_order_of_its_own() {
        let plain = FromBurn::new(InMemDataset::new((0..50).collect()), Whole);
        assert_eq!(read(&plain, 3, 10..13), [10, 11, 12]);
        let shuffled = plain.shuffled(7);
        let order = |epoch| read(&shuffled, epoch, 0..50);
        assert_ne!(order(0), order(1));
        for epoch in 0..2 {
            let mut items = order(epoch);
            assert!(!items.is_sorted());
            // However it is cut.
            assert_eq!([read(&shuffled, epoch, 0..13), read(&shuffled, epoch, 13..50)].concat(), items);
            items.sort();
            assert!(items.into_iter().eq(0..50));
        }
    }

    struct Square;

    impl Mapper<usize, usize> for Square {
        fn map(&self, item: &usize) -> usize {
            item * item
        }
    }

    #[test]
    fn transforms_and_shared_sets_are_sets() {
        let set = Arc::new(InMemDataset::new((0..9).collect::<Vec<usize>>()));
        let part = PartialDataset::new(set, 3, 6);
        let squares = MapperDataset::new(part, Square);
        assert_eq!(read(&FromBurn::new(squares, Whole), 0, 0..3), [9, 16, 25]);
    }

    #[test]
    fn samples_count_one_or_what_they_are_said_to() {
        let stream = FromBurn::new(InMemDataset::new(vec![3, 1, 2]), Whole);
        let counts = |stream: &FromBurn<_, _>| {
            let batch = stream.batch(0, 0..3).unwrap();
            (batch.samples(), batch.items(), batch.tokens(), stream.padded_tokens(0, 0..3).unwrap())
        };
        assert_eq!(counts(&stream), (3, 3, 3, 3));
        assert_eq!(counts(&stream.counted_by(OfItself)), (3, 3, 6, 9));
    }

    #[derive(Debug, thiserror::Error)]
    #[error("the disk is gone")]
    struct Gone;

    struct Unreadable;

    impl Dataset<usize, Gone> for Unreadable {
        fn get(&self, index: usize) -> Result<usize, Gone> {
            if index == 2 { Err(Gone) } else { Ok(index) }
        }

        fn len(&self) -> usize {
            4
        }
    }

    #[test]
    fn errors_of_the_data_set_name_the_samples() {
        let stream = FromBurn::new(Unreadable, Whole);
        assert_eq!(read(&stream, 0, 0..2), [0, 1]);
        let error = stream.batch(0, 1..3).unwrap_err().to_string();
        assert!(error.contains("[1, 2]") && error.contains("the disk is gone"), "{error}");
        assert!(matches!(
            stream.batch(0, 3..5).unwrap_err(),
            DataError::Sample(SampleError::OutOfRange { samples: 4, .. })
        ));
    }
}
