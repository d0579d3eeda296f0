//! The names of a classifier's labels.

use firebrick_datasets::collators::Labels;

use super::{Loading, Weighted};
use crate::run::RunError;

impl Loading<'_> {
    /// Returns the names of the labels, with the ids of the model's classifier if it has one. `field` is the one that
    /// holds them in a record; `names` are those that the run file gives, in the order of their ids, if any.
    ///
    /// # Errors
    ///
    /// The data cannot be read, or its labels differ from the classifier's.
    pub fn labels(&self, field: &str, names: &[String]) -> Result<Labels, RunError> {
        let own = || self.own_labels(field, names);
        match &self.settled.classifier {
            Some(classifier) => classifier.labels(names, own),
            None => own(),
        }
    }

    /// Returns the names of the labels, given or collected from the data.
    fn own_labels(&self, field: &str, names: &[String]) -> Result<Labels, RunError> {
        if !names.is_empty() {
            return Ok(Labels::new(names)?);
        }
        let corpora = self.corpora()?;
        let records = corpora.iter().flat_map(|Weighted { corpus, .. }| {
            (0..corpus.parts()).flat_map(|part| {
                corpus.open(part).unwrap_or_else(|error| Box::new(std::iter::once(Err(error))))
            })
        });
        Ok(Labels::from_records(records, field, self.config.malformed)?)
    }
}
