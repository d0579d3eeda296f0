//! Settings that are resolved before the data is read: the ids of labels and the decoder's start token, from the folder
//! of a model; and the tokenizer, from the resumed run.

use std::path::PathBuf;

use firebrick_datasets::collators::{Labels, Numbers};

use crate::LoadError;
use firebrick_models::AnyConfig;
use firebrick_models::pretrained::{CLASSIFIER, Folder};

/// Settings that are resolved before the data is read.
#[derive(Clone, Debug, Default)]
pub struct Settled {
    /// The classifier of the model's folder.
    pub classifier: Option<Classifier>,
    /// The token that the decoder starts with.
    pub start: Option<u32>,
    /// The `tokenizer.json` of the resumed run. A tokenizer that was built from the run's text is not built again.
    pub tokenizer: Option<PathBuf>,
    /// Whether the data is evaluated, as validation data is: its windows are not shifted.
    pub is_evaluated: bool,
}

/// An existing classifier, whose labels keep their ids.
#[derive(Clone, Debug)]
pub struct Classifier {
    /// The folder of the model, for messages.
    pub folder: PathBuf,
    /// The names of its labels, by id.
    pub names: Vec<String>,
    /// Whether the classifier was trained on this task. If so, the data need not have all of its labels.
    pub is_trained: bool,
    /// Whether the names may have been collected from the data that it was trained on, so that a number is a name.
    pub is_collected: bool,
}

impl Settled {
    /// Returns the settings for a run that continues to train the folder's model. `is_number` says whether the task
    /// learns a number.
    ///
    /// # Errors
    ///
    /// The task learns a number, and the folder has a classifier of several labels.
    pub fn to_train(folder: &Folder, config: &AnyConfig, is_number: bool) -> Result<Self, LoadError> {
        let classifier = Classifier::of(folder, config, false, false);
        if let Some(classifier) = classifier.as_ref().filter(|one| is_number && one.names.len() != 1) {
            return Err(classifier.refuse("the task learns a number (`kind: Number`)".into()));
        }
        Ok(Self { classifier, start: config.start(), ..Self::default() })
    }

    /// Returns the settings for a trained run that answers texts. `is_collected` says whether it took the names of its
    /// labels from its data.
    pub fn trained(folder: &Folder, config: &AnyConfig, is_collected: bool) -> Self {
        Self {
            classifier: Classifier::of(folder, config, true, is_collected),
            start: config.start(),
            ..Self::default()
        }
    }
}

impl Settled {
    /// Returns what the data of `data.path` is for, as messages say it.
    pub(crate) fn part(&self) -> &'static str {
        if self.is_evaluated { "evaluated" } else { "training" }
    }
}

impl Classifier {
    fn of(folder: &Folder, config: &AnyConfig, is_trained: bool, is_collected: bool) -> Option<Self> {
        let names = config.label_names().filter(|_| config.has_head(folder, CLASSIFIER))?;
        Some(Self { folder: folder.path().into(), names, is_trained, is_collected })
    }

    /// Returns the labels with the classifier's ids. `given` are the names in the run file, if any. `named` returns the
    /// labels with the given names, or else those of the data. It gets the classifier's names if these are what the data
    /// is about, since it does not have to have all of them, and whether these may have been collected from data.
    ///
    /// # Errors
    ///
    /// Those of `named`, and labels that differ from the classifier's.
    pub(crate) fn labels(
        &self,
        given: &[String],
        named: impl Fn(&[String], bool) -> Result<Labels, LoadError>,
    ) -> Result<Labels, LoadError> {
        if self.is_trained && given.is_empty() {
            return named(&self.names, self.is_collected);
        }
        let own = named(given, false)?;
        // The run file, or the metadata of the files, names the labels of a classifier that was saved without names.
        let are_named = !given.is_empty() || matches!(own.numbers(), Numbers::Ids(_));
        match own.ordered_as(&self.names) {
            Some(labels) => Ok(labels),
            None if are_named && own.len() == self.names.len() && self.is_nameless() => Ok(own),
            None if self.is_trained => named(&self.names, false),
            None => {
                let place = if given.is_empty() { "the training data has" } else { "`task.names` are" };
                Err(self.refuse(format!("{place} {}", listed(own.names()))))
            }
        }
    }

    /// Whether the names are those that `transformers` gives to unnamed labels.
    fn is_nameless(&self) -> bool {
        self.names.iter().enumerate().all(|(id, name)| *name == format!("LABEL_{id}"))
    }

    fn refuse(&self, found: String) -> LoadError {
        LoadError::Classifier { folder: self.folder.clone(), known: listed(&self.names), found }
    }
}

/// Writes the first of many names as a list of a run file.
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

    fn settled(
        folder: &[&str],
        is_trained: bool,
        given: &[&str],
        data: &[&str],
    ) -> Result<Labels, LoadError> {
        let classifier =
            Classifier { folder: "folder".into(), names: names(folder), is_trained, is_collected: false };
        classifier.labels(&names(given), |given, _| {
            Ok(if given.is_empty() { Labels::collect(names(data)) } else { Labels::new(given) }?)
        })
    }

    #[test]
    fn labels_have_the_ids_of_the_classifier() {
        let folder = ["pos", "neg"];
        let expected = Labels::new(folder).unwrap();
        // A number is no label of data with names.
        assert_eq!(
            settled(&folder, false, &[], &["neg", "pos"]).unwrap(),
            Labels::collected(folder).unwrap()
        );
        assert_eq!(settled(&folder, false, &[], &["0", "1"]).unwrap(), expected);
        assert_eq!(settled(&folder, false, &["neg", "pos"], &[]).unwrap().names(), folder);
        // A classifier without names takes those of the run file.
        let nameless = ["LABEL_0", "LABEL_1"];
        assert_eq!(settled(&nameless, false, &["neg", "pos"], &[]).unwrap().names(), ["neg", "pos"]);
        // A trained classifier may know more labels than some other data.
        assert_eq!(settled(&folder, true, &[], &["neg"]).unwrap(), expected);
        assert_eq!(settled(&folder, true, &["a", "b"], &[]).unwrap(), expected);
    }

    /// The ids of a classifier whose labels are called like numbers, or its names.
    #[test]
    fn labels_that_are_numbers() {
        let folder = ["1", "2", "3"];
        let by_id = Labels::new(folder).unwrap().numbered();
        assert_eq!(settled(&folder, false, &[], &["0", "1", "2"]).unwrap(), by_id);
        let by_name = Labels::collected(folder).unwrap();
        assert_eq!(settled(&folder, false, &[], &["1", "2", "3"]).unwrap(), by_name);
        // A trained run says whether its labels may be those that its data had.
        for is_collected in [false, true] {
            let trained =
                Classifier { folder: "folder".into(), names: names(&folder), is_trained: true, is_collected };
            let labels = trained.labels(&[], |names, collected| {
                assert_eq!((names.len(), collected), (3, is_collected));
                Ok(Labels::collected(names)?)
            });
            assert_eq!(labels.unwrap(), by_name);
        }
        // The metadata of files names the labels.
        let nameless = Classifier {
            folder: "folder".into(),
            names: names(&["LABEL_0", "LABEL_1"]),
            is_trained: false,
            is_collected: false,
        };
        let of_files = || -> Result<Labels, LoadError> { Ok(Labels::new(["neg", "pos"])?.numbered()) };
        assert_eq!(nameless.labels(&[], |_, _| of_files()).unwrap(), of_files().unwrap());
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
