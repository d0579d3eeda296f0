//! The names of a classifier's labels.

use firebrick_datasets::Reader;
use firebrick_datasets::collators::Labels;

use super::{Loading, Part, Weighted};
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
        let corpora = self.corpora()?.into_iter();
        let readers: Vec<_> =
            corpora.map(|Weighted { corpus, .. }| self.prints.reader(Part::Train, corpus.reader)).collect();
        let records = readers.iter().flat_map(|reader| {
            (0..reader.parts()).flat_map(|part| {
                reader.open(part).unwrap_or_else(|error| Box::new(std::iter::once(Err(error))))
            })
        });
        Ok(Labels::from_records(records, field, self.config.malformed)?)
    }
}
