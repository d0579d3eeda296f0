//! What is settled before the data is read: the ids of labels and the token that a decoder starts with, by the folder of
//! a model; and the tokenizer, by the run that goes on.

use std::path::PathBuf;

use firebrick_datasets::Labels;

use super::trainable::Trainable;
use super::{RunError, TaskConfig};
use crate::models::pretrained::{CLASSIFIER, Folder};

/// What is settled before the data is read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settled {
    /// The classifier that the folder has.
    pub classifier: Option<Classifier>,
    /// The token that its decoder starts with.
    pub start: Option<u32>,
    /// The `tokenizer.json` of the run that goes on: one that was made of its text is not made again.
    pub tokenizer: Option<PathBuf>,
}

/// A classifier whose rows are there already, so that its labels keep their ids.
#[derive(Clone, Debug)]
pub(crate) struct Classifier {
    folder: PathBuf,
    /// The names of its labels, by id.
    names: Vec<String>,
    /// Whether it has learned this task, so that data need not have all of its labels.
    is_trained: bool,
}

impl Settled {
    /// For a run that trains the folder's model on.
    ///
    /// # Errors
    ///
    /// The task learns a number, and the folder has a classifier of several labels.
    pub fn to_train<M: Trainable>(
        folder: &Folder,
        config: &M::Config,
        task: &TaskConfig,
    ) -> Result<Self, RunError> {
        let classifier = Classifier::of::<M>(folder, config, false);
        if let Some(classifier) = classifier.as_ref().filter(|one| task.is_number() && one.names.len() != 1) {
            return Err(classifier.refuse("the task learns a number (`kind: Number`)".into()));
        }
        Ok(Self { classifier, start: M::start_of(config), tokenizer: None })
    }

    /// For a run that was trained, and is asked about data.
    pub fn trained<M: Trainable>(folder: &Folder, config: &M::Config) -> Self {
        Self {
            classifier: Classifier::of::<M>(folder, config, true),
            start: M::start_of(config),
            tokenizer: None,
        }
    }
}

impl Classifier {
    fn of<M: Trainable>(folder: &Folder, config: &M::Config, is_trained: bool) -> Option<Self> {
        let names = M::label_names(config).filter(|_| folder.has_head::<M>(config, CLASSIFIER))?;
        Some(Self { folder: folder.path().into(), names, is_trained })
    }

    /// The labels with the classifier's ids. `given` are the names in the run file, if there are some, and `own` are
    /// the labels without the classifier.
    ///
    /// # Errors
    ///
    /// Those of `own`, and labels that are not the classifier's.
    pub fn labels(
        &self,
        given: &[String],
        own: impl FnOnce() -> Result<Labels, RunError>,
    ) -> Result<Labels, RunError> {
        if self.is_trained && given.is_empty() {
            return Ok(Labels::new(&self.names)?);
        }
        let own = own()?;
        match own.ordered_as(&self.names) {
            // Numbers in the data mean the classifier's labels, where the run file does not say what they mean.
            Some(_) if given.is_empty() => Ok(Labels::new(&self.names)?),
            Some(labels) => Ok(labels),
            // The run file says what a classifier means that was saved without names.
            None if !given.is_empty() && given.len() == self.names.len() && self.is_nameless() => Ok(own),
            None if self.is_trained => Ok(Labels::new(&self.names)?),
            None => {
                let place = if given.is_empty() { "the training data has" } else { "`task.names` are" };
                Err(self.refuse(format!("{place} {}", listed(own.names()))))
            }
        }
    }

    /// Whether the names are those of transformers for labels without one.
    fn is_nameless(&self) -> bool {
        self.names.iter().enumerate().all(|(id, name)| *name == format!("LABEL_{id}"))
    }

    fn refuse(&self, found: String) -> RunError {
        RunError::Classifier { folder: self.folder.clone(), known: listed(&self.names), found }
    }
}

/// The first of many names, as a list of a run file.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 30;
    let shown: Vec<_> = names.iter().take(SHOWN).map(|name| format!("{name:?}")).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => format!("[{}]", shown.join(", ")),
        rest => format!("[{}, and {rest} more]", shown.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| name.to_string()).collect()
    }

    fn settled(folder: &[&str], is_trained: bool, given: &[&str], data: &[&str]) -> Result<Labels, RunError> {
        let classifier = Classifier { folder: "folder".into(), names: names(folder), is_trained };
        let given = names(given);
        classifier.labels(&given, || {
            Ok(if given.is_empty() { Labels::collect(names(data)) } else { Labels::new(&given) }?)
        })
    }

    #[test]
    fn labels_have_the_ids_of_the_classifier() {
        let folder = ["pos", "neg"];
        let expected = Labels::new(folder).unwrap();
        assert_eq!(settled(&folder, false, &[], &["neg", "pos"]).unwrap(), expected);
        assert_eq!(settled(&folder, false, &[], &["0", "1"]).unwrap(), expected);
        assert_eq!(settled(&folder, false, &["neg", "pos"], &[]).unwrap().names(), folder);
        // A classifier without names has those that the run file gives.
        let nameless = ["LABEL_0", "LABEL_1"];
        assert_eq!(settled(&nameless, false, &["neg", "pos"], &[]).unwrap().names(), ["neg", "pos"]);
        // One that was trained here knows more labels than some other data.
        assert_eq!(settled(&folder, true, &[], &["neg"]).unwrap(), expected);
        assert_eq!(settled(&folder, true, &["a", "b"], &[]).unwrap(), expected);
    }

    #[test]
    fn other_labels_are_refused_with_both_sets_and_the_setting() {
        for (given, data, place) in [
            (&[][..], &["bad", "good"][..], "the training data has [\"bad\", \"good\"]"),
            (&[], &["neg"], "the training data has [\"neg\"]"),
            (&["neg", "pos", "other"], &[], "`task.names` are [\"neg\", \"pos\", \"other\"]"),
        ] {
            let error = settled(&["pos", "neg"], false, given, data).unwrap_err().to_string();
            let known = "folder: its classifier has the labels [\"pos\", \"neg\"]";
            assert!(error.starts_with(known) && error.contains(place), "{error}");
            assert!(error.contains("set `task.new_head` to true"), "{error}");
        }
        assert!(settled(&["LABEL_0", "LABEL_1"], false, &[], &["neg", "pos"]).is_err());
    }
}
