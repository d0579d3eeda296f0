//! What a task suggests for data that it has not seen before: the part of a new run file that depends on the task.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use firebrick_datasets::{Record, Tokenizer, Value, counted};

/// The first records of a data set, and the model that will learn from them.
#[derive(Debug, Default)]
pub struct Examples {
    /// The first records; empty if there is no data yet.
    pub records: Vec<Record>,
    /// Whether the data is plain text, each record a line of it.
    pub is_plain_text: bool,
    /// Bytes of the files, unpacked as far as is known.
    pub bytes: u64,
    /// The tokenizer of the model's folder, unless the model is fresh.
    pub tokenizer: Option<Tokenizer>,
    /// The most tokens that the model of the folder reads, if that is known.
    pub most_tokens: Option<usize>,
    /// The labels of the classifier that the model of the folder has, if it has one.
    pub labels: Option<Vec<String>>,
}

/// The part of a run file that depends on the task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suggestion {
    /// Settings of the task: names and values in RON.
    pub task: Vec<(&'static str, String)>,
    /// Settings of `data`: names, values in RON, and a comment.
    pub data: Vec<(&'static str, String, String)>,
    /// Special tokens that a tokenizer needs that is trained on the data: `data.special` in RON.
    pub special: Option<&'static str>,
    /// The metric that selects the best model.
    pub best_by: Option<&'static str>,
    /// What was recognised, for the user.
    pub found: Vec<String>,
}

/// The most tokens of a row that is suggested; longer rows cost memory.
const LONGEST: usize = 512;

impl Examples {
    /// Returns the fields of the first record, in order.
    pub fn fields(&self) -> Vec<&str> {
        self.records.first().map(|record| record.names().collect()).unwrap_or_default()
    }

    /// Returns why the records do not fit a task: what it needs of each record, and the fields that they have.
    pub fn lack(&self, needed: &str) -> String {
        match &self.fields()[..] {
            [] => format!("{needed}; the records have no fields"),
            fields => format!("{needed}; the records have the fields {}", fields.join(", ")),
        }
    }

    /// Returns a field whose values pass `fits` in all records: the first of the `usual` names that does, otherwise the
    /// first of all fields.
    pub fn field(&self, usual: &[&str], fits: impl Fn(&Value) -> bool) -> Option<String> {
        let fields = self.fields();
        let usual = usual.iter().filter(|name| fields.contains(*name));
        let mut names = usual.chain(&fields);
        names
            .find(|name| self.values(name).all(|value| value.is_some_and(&fits)))
            .map(|name| name.to_string())
    }

    /// Returns the value of a field in each record.
    pub fn values(&self, field: &str) -> impl Iterator<Item = Option<&Value>> {
        self.records.iter().map(move |record| record.get(field))
    }

    /// Returns the field with the text of a record: one with a usual name, otherwise the one with the longest texts.
    pub fn text(&self, other_than: &[&str]) -> Option<String> {
        const USUAL: [&str; 8] =
            ["text", "sentence", "content", "body", "review", "document", "question", "premise"];
        let is_text = |field: &str| {
            !other_than.contains(&field)
                && self.values(field).all(|value| matches!(value, Some(Value::Text(_))))
        };
        let fields: Vec<&str> = self.fields().into_iter().filter(|field| is_text(field)).collect();
        let usual = USUAL.into_iter().find(|name| fields.contains(name));
        let length = |field: &&str| self.values(field).map(|value| characters(value)).sum::<usize>();
        usual.or_else(|| fields.into_iter().max_by_key(length)).map(str::to_owned)
    }

    /// Returns the different values of a field, as text, if they are few enough to be classes.
    pub fn classes(&self, field: &str) -> Option<BTreeSet<String>> {
        let mut classes = BTreeSet::new();
        for value in self.values(field) {
            match value? {
                Value::Text(text) if text.chars().count() <= 60 => classes.insert(text.clone()),
                Value::Integer(number) => classes.insert(number.to_string()),
                Value::Bool(value) => classes.insert(value.to_string()),
                _ => return None,
            };
        }
        (classes.len() <= self.most_classes()).then_some(classes)
    }

    /// Returns the most different values that are taken for classes.
    pub(super) fn most_classes(&self) -> usize {
        if self.records.len() < 20 { self.records.len() } else { self.records.len() / 2 }
    }

    /// Returns the different items of a field of lists, as text, if each value is a list of labels and some differ.
    pub(super) fn labels_of_lists(&self, field: &str) -> Option<BTreeSet<String>> {
        let mut labels = BTreeSet::new();
        for value in self.values(field) {
            let Some(Value::List(items)) = value else { return None };
            for item in items {
                match item {
                    Value::Text(text) => labels.insert(text.clone()),
                    Value::Integer(number) => labels.insert(number.to_string()),
                    _ => return None,
                };
            }
        }
        (!labels.is_empty()).then_some(labels)
    }

    /// Whether a field has a number in each record. Tables without types hold numbers as text.
    pub(super) fn is_number(&self, field: &str) -> bool {
        self.values(field).all(|value| match value {
            Some(Value::Integer(_) | Value::Float(_)) => true,
            Some(Value::Text(text)) => text.trim().parse::<f64>().is_ok_and(f64::is_finite),
            _ => false,
        })
    }

    /// Suggests the most tokens of a row for texts of these fields, by the longest of the first records.
    pub fn length(&self, fields: &[&str]) -> (usize, String) {
        self.length_of(|record| fields.iter().map(|field| characters(record.get(field))).sum())
    }

    /// Suggests the most tokens of a row for texts with so many characters, by the longest of the first records.
    pub(super) fn length_of(&self, characters: impl Fn(&Record) -> usize) -> (usize, String) {
        // Tokens of a small vocabulary are short.
        let of_token = if self.tokenizer.is_some() { 3 } else { 2 };
        let lengths = self.records.iter().map(|record| characters(record).div_ceil(of_token) + 2);
        let longest = lengths.max().unwrap_or(128);
        let limit = self.most_tokens.unwrap_or(LONGEST).min(LONGEST);
        let length = longest.next_power_of_two().clamp(16.min(limit), limit);
        (length, "the most tokens of a sample; longer ones are cut".into())
    }

    /// Suggests the tokens of a window of one long text, so that its validation part has a window too.
    pub fn block(&self) -> (usize, String) {
        const SIZES: RangeInclusive<u32> = 3..=8;
        let most = self.most_tokens.unwrap_or(LONGEST);
        let tokens_of_valid = self.bytes / 10 / 6;
        let fits = |size: &usize| *size < most && (self.bytes == 0 || *size as u64 * 2 <= tokens_of_valid);
        let block = SIZES.rev().map(|power| 1 << power).find(fits).unwrap_or(8);
        (block, "the tokens that a window predicts: the model's context".into())
    }
}

/// The characters of a text with as many tokens as a chat template adds to a message: those that begin and end it, and
/// line ends.
pub(super) const OF_MESSAGE: usize = 24;

fn characters(value: Option<&Value>) -> usize {
    match value {
        Some(Value::Text(text)) => text.chars().count(),
        Some(Value::List(values)) => values.iter().map(|value| characters(Some(value)) + 1).sum(),
        Some(Value::Map(fields)) => {
            fields.iter().map(|(_, value)| characters(Some(value)) + 1).sum::<usize>() + OF_MESSAGE
        }
        _ => 0,
    }
}

impl Suggestion {
    /// Sets a field of the task to a text, unless that is its default.
    pub fn field(mut self, setting: &'static str, field: &str, default: &str) -> Self {
        if field != default {
            self.task.push((setting, format!("{field:?}")));
        }
        self
    }

    /// Sets a field of the task to a value in RON.
    pub fn set(mut self, setting: &'static str, ron: impl Into<String>) -> Self {
        self.task.push((setting, ron.into()));
        self
    }

    /// Sets a number of `data`.
    pub fn data(mut self, setting: &'static str, (value, note): (usize, String)) -> Self {
        self.data.push((setting, value.to_string(), note));
        self
    }

    /// Starts a new classifier if the one of the model's folder has other labels than these.
    pub fn labels(self, labels: &BTreeSet<String>, examples: &Examples) -> Self {
        let Some(known) = &examples.labels else { return self };
        let is_number = |label: &String| label.parse().is_ok_and(|id: usize| id < known.len());
        let is_same = labels.len() == known.len() && labels.iter().all(|label| known.contains(label));
        match is_same || labels.iter().all(is_number) {
            true => self,
            false => self.set("new_head", "true").found(format!(
                "the model's folder has a classifier of {}: a new one is trained",
                counted(known.len(), "other label")
            )),
        }
    }

    /// Adds special tokens for a tokenizer that is trained on the data.
    pub fn special(self, ron: &'static str) -> Self {
        Self { special: Some(ron), ..self }
    }

    /// Sets the metric that selects the best model.
    pub fn best_by(self, metric: &'static str) -> Self {
        Self { best_by: Some(metric), ..self }
    }

    /// Tells the user what was recognised.
    pub fn found(mut self, line: impl Into<String>) -> Self {
        self.found.push(line.into());
        self
    }
}

/// Lists some of the classes for a message.
pub(super) fn listed(classes: &BTreeSet<String>) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<&str> = classes.iter().take(SHOWN).map(String::as_str).collect();
    let rest = classes.len().saturating_sub(SHOWN);
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    format!("{}: {}{more}", counted(classes.len(), "label"), shown.join(", "))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use firebrick_datasets::RecordPlace;

    use super::*;

    fn examples(rows: &[(&str, &str)]) -> Examples {
        let record = |(text, class): &(&str, &str)| {
            let place = RecordPlace { file: Path::new("x").into(), line: 1 };
            let value = |text: &str| Value::Text(text.into());
            Record::new(place, vec![("kind".into(), value(class)), ("note".into(), value(text))])
        };
        Examples { records: rows.iter().map(record).collect(), ..Examples::default() }
    }

    #[test]
    fn a_text_is_long_and_classes_are_few() {
        let of =
            examples(&[("a long note of one", "x"), ("a long note of another", "y"), ("and one more", "x")]);
        assert_eq!(of.text(&[]).as_deref(), Some("note"));
        assert_eq!(of.text(&["note"]).as_deref(), Some("kind"));
        assert_eq!(listed(&of.classes("kind").unwrap()), "2 labels: x, y");
        assert_eq!(of.length(&["note"]).0, 16);
        let rows: Vec<_> =
            ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"].map(|name| (name, name)).into();
        let of = examples(&[&rows[..], &rows[..10]].concat());
        assert_eq!(of.classes("kind"), None, "11 of 21 are too many");
    }

    #[test]
    fn numbers_may_be_text_and_labels_lists() {
        let of = examples(&[("2.5", "1"), (" -3", "x")]);
        assert!(of.is_number("note") && !of.is_number("kind") && !of.is_number("none"));
        assert!(!examples(&[("nan", "1")]).is_number("note"));
        let record = |labels: Vec<Value>| {
            let place = RecordPlace { file: Path::new("x").into(), line: 1 };
            Record::new(place, vec![("tags".into(), Value::List(labels))])
        };
        let text = |text: &str| Value::Text(text.into());
        let records =
            vec![record(vec![text("a"), Value::Integer(1)]), record(vec![]), record(vec![text("b")])];
        let of = Examples { records, ..Examples::default() };
        assert_eq!(listed(&of.labels_of_lists("tags").unwrap()), "3 labels: 1, a, b");
        assert_eq!(of.labels_of_lists("none"), None);
    }

    #[test]
    fn a_window_fits_into_the_validation_part() {
        for (bytes, block) in [(0, 256), (1_000_000, 256), (20_000, 128), (2000, 16), (10, 8)] {
            assert_eq!(Examples { bytes, ..Examples::default() }.block().0, block, "{bytes}");
        }
        let most_tokens = Some(64);
        assert_eq!(Examples { bytes: 1_000_000, most_tokens, ..Examples::default() }.block().0, 32);
    }
}
