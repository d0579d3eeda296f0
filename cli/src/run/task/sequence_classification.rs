//! A class, several classes or a number for each text.

use firebrick_datasets::collators::{SequenceClassification, Target};
use firebrick_datasets::{DataError, Record};
use firebrick_models::inference::{LabelKind, Question};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::defaults::{label, text};
use super::record_json;
use super::{LabelSettings, Task};
use crate::run::load::Loading;
use crate::run::{Loaded, RunError};

/// `task: SequenceClassification(..)`: assigns a class, several classes or a number to a text or a pair of texts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SequenceClassificationTask {
    /// The field of the text. Default: `text`.
    #[serde(default = "text")]
    pub text: String,
    /// The field of a second text. Default: none.
    #[serde(default)]
    pub pair: Option<String>,
    /// The field of the label. Default: `label`.
    #[serde(default = "label")]
    pub label: String,
    /// What the label is: `Class`, `Classes` or `Number`. Default: `Class`.
    #[serde(default)]
    pub kind: LabelKind,
    /// The names of the classes, in the order of their ids. Default: those of the training data. If a `Pretrained`
    /// folder already has a classifier, the names must be the same, and the folder's order applies.
    #[serde(default)]
    pub names: Vec<String>,
    /// Whether to drop the classifier of a `Pretrained` folder and train a new one for these classes. Default: false.
    #[serde(default)]
    pub new_head: bool,
}

impl Task for SequenceClassificationTask {
    fn texts<'r>(&self, record: &'r Record) -> Result<Vec<&'r str>, DataError> {
        [&self.text].into_iter().chain(&self.pair).map(|field| record.text(field)).collect()
    }

    fn load(&self, loading: &Loading<'_>) -> Result<Loaded, RunError> {
        let tokenizer = loading.tokenizer()?;
        let labels = match self.kind {
            LabelKind::Number => None,
            LabelKind::Class | LabelKind::Classes => Some(loading.labels(&self.label, &self.names)?),
        };
        let target = match (self.kind, labels.clone()) {
            (LabelKind::Class, Some(labels)) => Target::Class(labels),
            (LabelKind::Classes, Some(labels)) => Target::Classes(labels),
            _ => Target::Number,
        };
        let collator = SequenceClassification::new(loading.encoder(&tokenizer, None), target);
        let collator = match &self.pair {
            Some(pair) => collator.pair(&self.text, pair),
            None => collator.field(&self.text),
        };
        let collator = collator.label(&self.label).padding(loading.padding(&tokenizer));
        let loaded = loading.loaded(tokenizer, loading.batches(collator)?);
        Ok(Loaded { labels, ..loaded })
    }

    fn question(&self, record: &Record) -> Result<(Question, Option<Value>), DataError> {
        let first = record.text(&self.text)?.to_owned();
        let question = match &self.pair {
            Some(second) => Question::Pair(first, record.text(second)?.to_owned()),
            None => Question::Text(first),
        };
        Ok((question, record_json(record, &self.label)))
    }

    fn labels(&self) -> Option<LabelSettings<'_>> {
        let Self { label, kind, names, new_head, .. } = self;
        Some(LabelSettings { field: label, kind: Some(*kind), names, new_head: *new_head })
    }
}
