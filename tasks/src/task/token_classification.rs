//! A label for each word.

use std::collections::BTreeSet;

use firebrick_datasets::collators::{Subwords, TokenClassification};
use firebrick_datasets::{DataError, Format, Record, Value as Field};
use firebrick_models::TokenScores;
use firebrick_models::inference::Question;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::entity_scheme::{entity_scheme, unread_scheme};
use super::fields::{json_of, record_json};
use super::suggestion::listed;
use super::{Asks, Examples, LabelSettings, Suggestion, Task};
use crate::{LoadError, Loaded, Loading};

/// `task: TokenClassification(..)`: assigns a label to each word.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TokenClassificationTask {
    /// The field of the words. Default: `words`.
    pub words: String,
    /// The field of their labels. Default: `labels`.
    pub labels: String,
    /// Which tokens of a word carry its label: `First`, `Inside` or `All`. Default: `First`.
    pub subwords: Subwords,
    /// The names of the labels, in the order of their ids. Default: those of the training data. If a `Pretrained`
    /// folder already has a classifier, the names must be the same, and the folder's order applies.
    pub names: Vec<String>,
    /// Whether to drop the classifier of a `Pretrained` folder and train a new one for these labels. Default: false.
    pub new_head: bool,
}

impl Default for TokenClassificationTask {
    fn default() -> Self {
        Self {
            words: "words".into(),
            labels: "labels".into(),
            subwords: Subwords::default(),
            names: Vec::new(),
            new_head: false,
        }
    }
}

impl Task for TokenClassificationTask {
    fn texts<'r>(&self, record: &'r Record) -> Result<Vec<&'r str>, DataError> {
        record.texts(&self.words)
    }

    fn load(&self, loading: &Loading<'_>) -> Result<Loaded, LoadError> {
        let tokenizer = loading.tokenizer()?;
        let labels = loading.labels(&self.labels, &self.names)?;
        self.tell_scheme(loading)?;
        let collator = TokenClassification::new(loading.encoder(&tokenizer, None), labels.clone())
            .fields(&self.words, &self.labels)
            .subwords(self.subwords)?;
        let batches = loading.batches(collator.padding(loading.padding(&tokenizer)))?;
        Ok(loading.loaded(tokenizer, batches).labelled(labels))
    }

    fn labels(&self) -> Option<LabelSettings<'_>> {
        let Self { labels, names, new_head, .. } = self;
        Some(LabelSettings { field: labels, kind: None, names, new_head: *new_head })
    }

    fn suggest(&self, examples: &Examples) -> Result<Suggestion, String> {
        let of = |value: &Field, fits: fn(&Field) -> bool| matches!(value, Field::List(values) if values.iter().all(fits));
        let is_words = |value: &Field| of(value, |word| matches!(word, Field::Text(_)));
        let is_labels =
            |value: &Field| of(value, |label| matches!(label, Field::Text(_) | Field::Integer(_)));
        let words = examples.field(&["words", "tokens"], is_words);
        let usual = ["labels", "ner_tags", "tags", "pos_tags", "chunk_tags", "label"];
        let other = |name: &String| Some(name) != words.as_ref();
        let labels = examples.field(&usual, is_labels).filter(other);
        let (words, labels) = match (words, labels, examples.records.is_empty()) {
            (Some(words), Some(labels), _) => (words, labels),
            (_, _, true) => {
                let Self { words, labels, .. } = Self::default();
                (words, labels)
            }
            _ => return Err(examples.lack("each record needs a list of words and a list of their labels")),
        };
        let mut names = BTreeSet::new();
        for value in examples.values(&labels).flatten() {
            if let Field::List(values) = value {
                names.extend(values.iter().map(|value| match value {
                    Field::Text(label) => label.clone(),
                    other => json_of(other).to_string(),
                }));
            }
        }
        // The reader of CoNLL has converted what it can.
        let scheme = entity_scheme(&examples.records, &labels);
        let unread = scheme.and_then(|scheme| unread_scheme(scheme, false));
        let suggestion = Suggestion::default()
            .field("words", &words, "words")
            .field("labels", &labels, "labels")
            .data("max_length", examples.length(&[&words]))
            .special("(pad: \"<pad>\", bos: \"<s>\", eos: \"</s>\")")
            .best_by(match unread {
                Some(_) => "accuracy",
                None => best_score(&names, examples),
            });
        let suggestion = suggestion.labels(&names, examples);
        let suggestion = match unread {
            Some(unread) => suggestion.found(unread),
            None => suggestion,
        };
        Ok(suggestion.found(format!("words in `{words}`, {} in `{labels}`", listed(&names))))
    }
}

impl Asks for TokenClassificationTask {
    fn question(&self, record: &Record) -> Result<(Question, Option<Value>), DataError> {
        let words = record.texts(&self.words)?.into_iter().map(str::to_owned).collect();
        Ok((Question::Words(words), record_json(record, &self.labels)))
    }

    /// Words stand between white space.
    fn typed(&self, line: &str) -> Vec<(String, Field)> {
        let words = line.split_whitespace().map(|word| Field::Text(word.into())).collect();
        vec![(self.words.clone(), Field::List(words))]
    }

    /// Each word needs a label.
    fn predicts_in_parts(&self) -> bool {
        true
    }
}

/// The number of records whose labels show their scheme.
const SHOWN: usize = 1000;

impl TokenClassificationTask {
    /// Says if entities are marked in another scheme than scores read: they would all be wrong, or be classes.
    fn tell_scheme(&self, loading: &Loading<'_>) -> Result<(), LoadError> {
        let data = loading.config();
        let Some(paths) = &data.path else { return Ok(()) };
        let reader = loading.open(paths, data.format.as_ref())?.reader;
        let mut records = Vec::new();
        for part in 0..reader.parts() {
            let rest = SHOWN.saturating_sub(records.len());
            // Malformed records are reported when they are tokenized.
            records.extend(reader.open(part)?.take(rest).filter_map(Result::ok));
        }
        let format = data.format.clone().or_else(|| Format::of(paths.as_slice().first()?).ok());
        let is_conll = matches!(format, Some(Format::Conll { .. }));
        let scheme = entity_scheme(&records, &self.labels);
        if let Some(unread) = scheme.and_then(|scheme| unread_scheme(scheme, is_conll)) {
            loading.say(&format!("warning: {unread}"));
        }
        Ok(())
    }
}

/// Returns the score of labels that selects the best model: the F1 of entities, if they mark some.
fn best_score(names: &BTreeSet<String>, examples: &Examples) -> &'static str {
    // The labels of a placeholder are not known, and ids have the names of the folder's classifier.
    let is_id = |label: &String| label.parse::<usize>().is_ok();
    let names: Vec<String> = match &examples.labels {
        Some(known) if names.iter().all(is_id) => known.clone(),
        _ => names.iter().cloned().collect(),
    };
    let scores = TokenScores::new(names.clone()).scores(&[]);
    match names.is_empty() || scores.iter().any(|score| score.name == "f1") {
        true => "f1",
        false => "accuracy",
    }
}
