//! Batches whose type only the task knows.

use std::any::Any;
use std::fmt::Debug;

use firebrick::Data;
use firebrick::data::Fingerprints;
use firebrick::engine::feed::first_epoch;
use firebrick_datasets::{Batch, DataError};

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

    /// Returns the fingerprints of what was read.
    pub fn fingerprints(&self) -> Fingerprints {
        self.0.fingerprints()
    }

    /// Looks at the first epoch, with so many micro-batches in an update: see [`Preview::of`].
    pub(super) fn preview(
        &self,
        per_window: usize,
        names: &Names,
        batches: usize,
        rows: usize,
    ) -> Result<Preview, DataError> {
        self.0.preview(per_window, names, batches, rows)
    }
}

trait AnyData: Any + Debug + Send + Sync {
    fn fingerprints(&self) -> Fingerprints;
    fn preview(
        &self,
        per_window: usize,
        names: &Names,
        batches: usize,
        rows: usize,
    ) -> Result<Preview, DataError>;
}

impl<B: Legible> AnyData for Data<B> {
    fn fingerprints(&self) -> Fingerprints {
        self.fingerprints
    }

    fn preview(
        &self,
        per_window: usize,
        names: &Names,
        batches: usize,
        rows: usize,
    ) -> Result<Preview, DataError> {
        Preview::of(first_epoch(self, per_window)?, names, batches, rows)
    }
}
