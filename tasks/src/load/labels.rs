//! The names of a classifier's labels.

use firebrick_datasets::collators::{Labels, Numbers};
use firebrick_datasets::{DataError, Fingerprinted, ReadError, Reader, SampleError};

use super::{Loading, Part, Weighted, no_samples};
use crate::LoadError;

impl Loading<'_> {
    /// Returns the names of the labels, with the ids of the model's classifier if it has one. `field` is the one that
    /// holds them in a record; `names` are those that the run file gives, in the order of their ids, if any.
    ///
    /// Whole numbers in the data are names throughout, or ids throughout: see [`Labels::for_records`]. A line
    /// says which if names are whole numbers.
    ///
    /// # Errors
    ///
    /// The data cannot be read, its labels differ from the classifier's, or files number their classes differently.
    pub fn labels(&self, field: &str, names: &[String]) -> Result<Labels, LoadError> {
        self.require_one_numbering(field)?;
        let labels = match &self.settled.classifier {
            Some(classifier) => {
                classifier.labels(names, |names, collected| self.named_labels(field, names, collected))?
            }
            None => self.named_labels(field, names, false)?,
        };
        // Without names in the run file or the model, labels are what the data has, and there is nothing to tell.
        if labels.is_ambiguous() && (self.settled.classifier.is_some() || !names.is_empty()) {
            self.say(&told(&labels, field));
        }
        Ok(labels)
    }

    /// Returns the labels with these names, or else with those of the files or the records. `collected` says whether the
    /// names may be those of the training data.
    fn named_labels(&self, field: &str, names: &[String], collected: bool) -> Result<Labels, LoadError> {
        let readers = self.training_readers()?;
        let of_files = readers.iter().find_map(|reader| reader.class_names(field).transpose()).transpose()?;
        match of_files {
            Some(of_files) if names.is_empty() => return Ok(Labels::new(of_files)?.numbered()),
            Some(of_files) => {
                let labels = Labels::new(names)?;
                return match labels.clone().numbered_as(&of_files) {
                    Some(labels) => Ok(labels),
                    None if of_files.iter().any(|name| labels.id(name).is_some()) => {
                        Err(DataError::Read(ReadError::File {
                            path: self.config.summary().into(),
                            expected: format!("classes of `{field}` among the labels {}", shown(names)),
                            found: shown(&of_files),
                        })
                        .into())
                    }
                    // Other names for the same classes, in their order.
                    None => Ok(labels.numbered()),
                };
            }
            // In other data, a number that training lacks is no label. It is not the id of another one.
            None if collected && Labels::new(names)?.is_ambiguous() => return Ok(Labels::collected(names)?),
            None => {}
        }
        let records = readers.iter().flat_map(|reader| {
            (0..reader.parts()).flat_map(|part| {
                reader.open(part).unwrap_or_else(|error| Box::new(std::iter::once(Err(error))))
            })
        });
        let malformed = self.config.malformed;
        if !names.is_empty() {
            return Ok(Labels::for_records(names, records, field, malformed)?);
        }
        Ok(Labels::from_records(records, field, malformed).map_err(|error| match error {
            DataError::Sample(SampleError::NoLabels { records: 0, .. }) => {
                let place = format!("the {} data, {},", self.settled.part(), self.config.summary());
                no_samples(place, &self.skipped)
            }
            other => other,
        })?)
    }

    fn training_readers(&self) -> Result<Vec<Fingerprinted>, LoadError> {
        let corpora = self.corpora()?.into_iter();
        Ok(corpora.map(|Weighted { corpus, .. }| self.prints.reader(Part::Train, corpus.reader)).collect())
    }

    /// Rejects files of training and validation whose metadata number the classes of a field differently: the same
    /// number would be another class.
    fn require_one_numbering(&self, field: &str) -> Result<(), LoadError> {
        let mut sources = Vec::new();
        for Weighted { corpus, .. } in self.corpora()? {
            sources.push((corpus.paths, corpus.reader.class_names(field)?));
        }
        if let Some(paths) = &self.config.valid {
            let names = self.open(paths, self.config.format.as_ref())?.reader.class_names(field)?;
            sources.push((paths, names));
        }
        let named: Vec<_> =
            sources.iter().filter_map(|(paths, names)| Some((*paths, names.as_ref()?))).collect();
        match named.windows(2).find(|pair| pair[0].1 != pair[1].1) {
            None => Ok(()),
            Some(pair) => Err(DataError::Read(ReadError::File {
                path: pair[1].0.summary().into(),
                expected: format!(
                    "the classes of `{field}` in {}: {}",
                    pair[0].0.summary(),
                    shown(pair[0].1)
                ),
                found: shown(pair[1].1),
            })
            .into()),
        }
    }
}

/// Says how whole numbers are read where they could be names and ids.
fn told(labels: &Labels, field: &str) -> String {
    match labels.numbers() {
        Numbers::Names => format!("the numbers in `{field}` are names of labels, not their ids"),
        Numbers::Ids(ids) => {
            let first = ids.first().and_then(|id| labels.name(*id)).unwrap_or_default();
            format!("the numbers in `{field}` are ids of labels, not their names: 0 is the label {first:?}")
        }
    }
}

/// The first of many names.
fn shown(names: &[String]) -> String {
    const SHOWN: usize = 30;
    let rest = if names.len() > SHOWN { ", …" } else { "" };
    names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ") + rest
}
