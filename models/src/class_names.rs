//! The classes of a classifier, as `config.json` names them.

use firebrick_datasets::collators::Labels;
use firebrick_metrics::Classification;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::SequenceScores;
use crate::inference::LabelKind;

/// The fields of `config.json` that describe the classes of a classifier.
///
/// ```
/// use firebrick_models::ClassNames;
///
/// let classes = ClassNames::of(["negative", "positive"]);
/// assert_eq!(classes.id2label.as_ref().unwrap()["1"], "positive");
/// assert_eq!((classes.count(), ClassNames::default().count()), (2, 2));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassNames {
    /// Class names by class number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id2label: Option<Map<String, Value>>,
    /// Class numbers by class name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label2id: Option<Map<String, Value>>,
    /// Number of classes, if they have no names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_labels: Option<usize>,
    /// What a text's label is: `single_label_classification`, `multi_label_classification` or `regression`. If absent,
    /// a number if there is one class, and one of the classes otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem_type: Option<String>,
}

impl ClassNames {
    /// Names the classes, in order of their numbers.
    pub fn of<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Self {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        let by_id = names.iter().enumerate().map(|(id, name)| (id.to_string(), json!(name)));
        let by_name = names.iter().enumerate().map(|(id, name)| (name.clone(), json!(id)));
        Self {
            id2label: Some(by_id.collect()),
            label2id: Some(by_name.collect()),
            num_labels: None,
            problem_type: None,
        }
    }

    /// The number of classes: the number of class names, or else `num_labels`, or else 2.
    pub fn count(&self) -> usize {
        let named = self.id2label.as_ref().map(Map::len);
        named.or(self.num_labels).unwrap_or(2)
    }

    /// The class names in order of their numbers; a class without a name gets one like `LABEL_3`, as in transformers.
    pub fn names(&self) -> Vec<String> {
        let name = |id: usize| {
            let named = self.id2label.as_ref().and_then(|names| names.get(&id.to_string())?.as_str());
            named.map_or_else(|| format!("LABEL_{id}"), String::from)
        };
        (0..self.count()).map(name).collect()
    }

    /// Names other classes, of labels of the same kind.
    pub(crate) fn renamed<N: Into<String>>(self, names: impl IntoIterator<Item = N>) -> Self {
        Self { problem_type: self.problem_type, ..Self::of(names) }
    }

    /// Sets the names of a classifier's labels; `kind` is what a text's label is, and `None` if words have labels.
    pub(crate) fn labelled(mut self, kind: Option<LabelKind>, labels: Option<&Labels>) -> Self {
        if let Some(kind) = kind {
            let problem = match kind {
                LabelKind::Class => "single_label_classification",
                LabelKind::Classes => "multi_label_classification",
                LabelKind::Number => "regression",
            };
            self.problem_type = Some(problem.into());
            if kind == LabelKind::Number {
                return self.renamed(["LABEL_0"]);
            }
        }
        match labels {
            Some(labels) => self.renamed(labels.names()),
            None => self,
        }
    }

    /// How a classifier of these classes scores texts.
    pub(crate) fn scores(&self) -> SequenceScores {
        match self.problem_type.as_deref() {
            Some("regression") => SequenceScores::Number,
            Some("multi_label_classification") => SequenceScores::Classes(self.count()),
            None if self.count() == 1 => SequenceScores::Number,
            _ => SequenceScores::Class(Classification::new(self.names())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classes(fields: &str) -> ClassNames {
        serde_json::from_str(fields).unwrap()
    }

    #[test]
    fn labels_by_name_and_by_number() {
        assert_eq!(classes("{}").count(), 2);
        let numbered = classes(r#"{"num_labels": 5, "problem_type": "regression"}"#);
        assert_eq!(numbered.count(), 5);
        let both = classes(r#"{"num_labels": 5, "id2label": {"0": "a", "1": "b", "2": "c"}}"#);
        assert_eq!((both.count(), both.names()), (3, ["a", "b", "c"].map(String::from).into()));
        let named = serde_json::to_value(numbered.renamed(["x", "y", "z"])).unwrap();
        assert_eq!(named["id2label"], json!({"0": "x", "1": "y", "2": "z"}));
        assert_eq!(named["label2id"], json!({"x": 0, "y": 1, "z": 2}));
        assert_eq!((named.get("num_labels"), &named["problem_type"]), (None, &json!("regression")));
        assert_eq!(classes(r#"{"num_labels": 2}"#).names(), ["LABEL_0", "LABEL_1"]);
    }

    #[test]
    fn the_kind_of_label_selects_the_scores() {
        let of = |kind| ClassNames::of(["a", "b"]).labelled(Some(kind), None).scores();
        assert!(matches!(of(LabelKind::Class), SequenceScores::Class(_)));
        assert_eq!(of(LabelKind::Classes), SequenceScores::Classes(2));
        assert_eq!(of(LabelKind::Number), SequenceScores::Number);
        assert_eq!(classes(r#"{"num_labels": 1, "problem_type": null}"#).scores(), SequenceScores::Number);
        assert_eq!(ClassNames::of(["a", "b"]).labelled(Some(LabelKind::Number), None).names(), ["LABEL_0"]);
    }
}
