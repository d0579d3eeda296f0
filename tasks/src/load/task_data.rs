//! Batches whose type only the task knows.

use std::any::{Any, TypeId};
use std::fmt::Debug;

use firebrick::data::Fingerprints;
use firebrick::engine::feed::first_epoch;
use firebrick::{AnyBatch, Data};
use firebrick_datasets::{Batch, DataError};
use firebrick_models::AnyConfig;

use crate::preview::{Legible, Names, Preview};

/// Batches of the type that its task makes.
#[derive(Debug)]
pub struct TaskData(Box<dyn AnyData>);

impl TaskData {
    pub(super) fn new<B: Legible>(data: Data<B>) -> Self {
        Self(Box::new(data))
    }

    /// Returns the batches, or `None` if the task makes batches of another type.
    pub fn batches<B: Batch>(self) -> Option<Data<B>> {
        let data: Box<dyn Any> = self.0;
        data.downcast().ok().map(|data| *data)
    }

    /// Returns the batches for a model of any type, or `None` if the task makes batches of another type than the
    /// [model's](AnyConfig::batch_type).
    pub fn batches_for(self, config: &AnyConfig) -> Option<Data<AnyBatch>> {
        (self.0.batch_type() == config.batch_type()).then(|| self.0.erased())
    }

    /// Returns the fingerprints of what was read.
    pub fn fingerprints(&self) -> Fingerprints {
        self.0.fingerprints()
    }

    /// Looks at the first epoch, with so many micro-batches in an update: see [`Preview::of`].
    pub(super) fn preview(
        &self,
        per_step: usize,
        names: &Names,
        batches: usize,
        rows: usize,
    ) -> Result<Preview, DataError> {
        self.0.preview(per_step, names, batches, rows)
    }
}

trait AnyData: Any + Debug + Send + Sync {
    fn batch_type(&self) -> TypeId;
    fn erased(self: Box<Self>) -> Data<AnyBatch>;
    fn fingerprints(&self) -> Fingerprints;
    fn preview(
        &self,
        per_step: usize,
        names: &Names,
        batches: usize,
        rows: usize,
    ) -> Result<Preview, DataError>;
}

impl<B: Legible> AnyData for Data<B> {
    fn batch_type(&self) -> TypeId {
        TypeId::of::<B>()
    }

    fn erased(self: Box<Self>) -> Data<AnyBatch> {
        Data::erased(*self)
    }

    fn fingerprints(&self) -> Fingerprints {
        self.fingerprints
    }

    fn preview(
        &self,
        per_step: usize,
        names: &Names,
        batches: usize,
        rows: usize,
    ) -> Result<Preview, DataError> {
        Preview::of(first_epoch(self, per_step)?, names, batches, rows)
    }
}

#[cfg(test)]
mod tests {
    use firebrick_datasets::Windows;
    use firebrick_models::{BertConfig, BertMaskedLm, Gpt, Gpt2Config};

    use super::*;

    #[test]
    fn batches_of_another_type_than_the_model_s_are_refused() {
        let data = || TaskData::new(Data::new(Windows::new(vec![1, 2, 3], 1).unwrap()));
        let (gpt, bert) = (AnyConfig::of::<Gpt>(Gpt2Config::default()), BertConfig::default());
        assert_eq!(data().batches_for(&gpt).unwrap().train.samples(0), 2);
        assert!(data().batches_for(&AnyConfig::of::<BertMaskedLm>(bert)).is_none());
    }
}
