//! A class, several classes or a number for each text.

use std::collections::BTreeSet;

use firebrick_datasets::collators::{SequenceClassification, Target};
use firebrick_datasets::{DataError, Record, Value as Field};
use firebrick_models::inference::{LabelKind, Question};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::fields::record_json;
use super::suggestion::listed;
use super::{Asks, Examples, LabelSettings, Suggestion, Task};
use crate::{LoadError, Loaded, Loading};

/// `task: SequenceClassification(..)`: assigns a class, several classes or a number to a text or a pair of texts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SequenceClassificationTask {
    /// The field of the text. Default: `text`.
    pub text: String,
    /// The field of a second text. Default: none.
    pub pair: Option<String>,
    /// The field of the label. Default: `label`.
    pub label: String,
    /// What the label is: `Class`, `Classes` or `Number`. Default: `Class`.
    pub kind: LabelKind,
    /// The names of the classes, in the order of their ids. Default: those of the training data. If a `Pretrained`
    /// folder already has a classifier, the names must be the same, and the folder's order applies.
    pub names: Vec<String>,
    /// Whether to drop the classifier of a `Pretrained` folder and train a new one for these classes. Default: false.
    pub new_head: bool,
}

impl Default for SequenceClassificationTask {
    fn default() -> Self {
        Self {
            text: "text".into(),
            pair: None,
            label: "label".into(),
            kind: LabelKind::default(),
            names: Vec::new(),
            new_head: false,
        }
    }
}

impl Task for SequenceClassificationTask {
    fn texts<'r>(&self, record: &'r Record) -> Result<Vec<&'r str>, DataError> {
        [&self.text].into_iter().chain(&self.pair).map(|field| record.text(field)).collect()
    }

    fn load(&self, loading: &Loading<'_>) -> Result<Loaded, LoadError> {
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

    fn smooths_labels(&self) -> bool {
        self.kind != LabelKind::Number
    }

    fn labels(&self) -> Option<LabelSettings<'_>> {
        let Self { label, kind, names, new_head, .. } = self;
        Some(LabelSettings { field: label, kind: Some(*kind), names, new_head: *new_head })
    }

    fn suggest(&self, examples: &Examples) -> Result<Suggestion, String> {
        let base = Suggestion::default().special("(pad: \"<pad>\", bos: \"<s>\", eos: \"</s>\")");
        if examples.records.is_empty() {
            return Ok(base.data("max_length", examples.length(&[])).best_by("accuracy"));
        }
        const USUAL: [&str; 10] = [
            "label",
            "labels",
            "class",
            "category",
            "target",
            "sentiment",
            "topic",
            "score",
            "stars",
            "rating",
        ];
        let fields = examples.fields();
        let found = USUAL
            .into_iter()
            .filter(|name| fields.contains(name))
            .find_map(|name| Some((name, labels_in(name, examples)?)))
            .or_else(|| {
                let text = examples.text(&[]);
                let others = fields.iter().copied().rev().filter(|field| Some(*field) != text.as_deref());
                let labels = others.filter_map(|field| Some((field, labels_in(field, examples)?)));
                let few = labels.filter(|(_, (_, names))| names.len() <= examples.most_classes());
                few.min_by_key(|(_, (kind, _))| match kind {
                    LabelKind::Class => 0,
                    LabelKind::Classes => 1,
                    LabelKind::Number => 2,
                })
            });
        let Some((label, (kind, names))) = found else {
            let needed =
                "each record needs a label: a field with few different values, a list of labels, or a number";
            return Err(examples.lack(needed));
        };
        let Some(text) = examples.text(&[label]) else {
            return Err(examples.lack(&format!("each record needs a text beside its label, `{label}`")));
        };
        let pairs = [
            ("premise", "hypothesis"),
            ("question", "sentence"),
            ("sentence1", "sentence2"),
            ("text1", "text2"),
        ];
        let pair =
            pairs.into_iter().find(|(first, second)| fields.contains(first) && fields.contains(second));
        let (text, pair) = match pair {
            Some((first, second)) => (first.to_owned(), Some(second)),
            None => (text, None),
        };
        let read: Vec<&str> = [&*text].into_iter().chain(pair).collect();
        let length = examples.length(&read);
        let suggestion = base.field("text", &text, "text");
        let suggestion = match pair {
            Some(pair) => suggestion.set("pair", format!("{pair:?}")),
            None => suggestion,
        };
        let suggestion = suggestion.field("label", label, "label").data("max_length", length);
        let labels = format!("the texts are in `{text}`, {} in `{label}`", listed(&names));
        Ok(match kind {
            LabelKind::Class => suggestion.best_by("accuracy").found(labels).labels(&names, examples),
            LabelKind::Classes => {
                let suggestion = suggestion.set("kind", "Classes").best_by("f1");
                suggestion.found(format!("{labels}, any number of them for a text")).labels(&names, examples)
            }
            LabelKind::Number => {
                let found = format!("the texts are in `{text}`, and a number in `{label}` is learned");
                suggestion.set("kind", "Number").found(found)
            }
        })
    }
}

impl Asks for SequenceClassificationTask {
    fn question(&self, record: &Record) -> Result<(Question, Option<Value>), DataError> {
        let first = record.text(&self.text)?.to_owned();
        let question = match &self.pair {
            Some(second) => Question::Pair(first, record.text(second)?.to_owned()),
            None => Question::Text(first),
        };
        Ok((question, record_json(record, &self.label)))
    }

    fn typed(&self, line: &str) -> Vec<(String, Field)> {
        vec![(self.text.clone(), Field::Text(line.into()))]
    }
}

/// Returns what kind of label a field holds, and the names of the classes; `None` if it holds no label.
fn labels_in(field: &str, examples: &Examples) -> Option<(LabelKind, BTreeSet<String>)> {
    let is_number = examples.is_number(field);
    let is_whole = |class: &String| class.trim().parse::<i64>().is_ok();
    match examples.classes(field) {
        // Whole numbers may be classes; 0.5 and 2 are no names.
        Some(classes) if !is_number || classes.iter().all(is_whole) => Some((LabelKind::Class, classes)),
        _ if is_number => Some((LabelKind::Number, BTreeSet::new())),
        _ => examples.labels_of_lists(field).map(|labels| (LabelKind::Classes, labels)),
    }
}
