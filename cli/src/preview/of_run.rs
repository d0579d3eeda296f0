//! The data of a run, looked at.

use firebrick_datasets::{DataError, Labels};

use super::{Legible, Names, Preview};
use crate::run::{DataRun, Loaded, RunError, TaskData};
use firebrick::data::Data;
use firebrick::engine::feed::first_epoch;

impl DataRun {
    /// Looks at the micro-batches of the first epoch, 5,000 at most, and keeps the first `batches` of them, `rows` rows of
    /// each, to be drawn.
    ///
    /// # Errors
    ///
    /// The first error of the data.
    pub fn preview(&self, loaded: &Loaded, batches: usize, rows: usize) -> Result<Preview, RunError> {
        let look = Looking { loaded, per_window: self.micro_batches(), batches, rows };
        Ok(match &loaded.data {
            TaskData::CausalLm(data) => look.at(data, None),
            TaskData::MaskedLm(data) => look.at(data, None),
            TaskData::TokenClassification(data, labels) => look.at(data, Some(labels)),
            TaskData::SequenceClassification(data, labels) => look.at(data, labels.as_ref()),
            TaskData::Seq2Seq(data) => look.at(data, None),
        }?)
    }
}

struct Looking<'a> {
    loaded: &'a Loaded,
    per_window: usize,
    batches: usize,
    rows: usize,
}

impl Looking<'_> {
    fn at<B: Legible>(&self, data: &Data<B>, labels: Option<&Labels>) -> Result<Preview, DataError> {
        let names = Names { tokenizer: self.loaded.tokenizer.clone(), labels: labels.cloned() };
        Preview::of(first_epoch(data, self.per_window)?, &names, self.batches, self.rows)
    }
}
