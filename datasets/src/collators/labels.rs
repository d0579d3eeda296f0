//! Class names and their ids.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use crate::{DataError, Malformed, Record, SampleError, Skipped, Value};

/// Maps class names to ids and back.
///
/// # Example
///
/// ```
/// use firebrick_datasets::collators::Labels;
///
/// let labels = Labels::collect(["B-PER", "O", "B-LOC", "O"])?;
/// assert_eq!(labels.names(), ["O", "B-LOC", "B-PER"]);
/// assert_eq!(labels.id("B-PER"), Some(2));
/// assert_eq!(labels.name(0), Some("O"));
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labels {
    names: Vec<String>,
    ids: BTreeMap<String, i32>,
    /// The id for each number in a record.
    numbers: Vec<i32>,
}

impl Labels {
    /// Creates labels from names. The id of a name is its index.
    ///
    /// # Errors
    ///
    /// [`SampleError::DuplicateLabel`] if a name occurs twice, [`DataError::Zero`] if there are no names.
    pub fn new<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Result<Self, DataError> {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        if names.is_empty() {
            return Err(DataError::Zero { setting: "the number of label names" });
        }
        let mut ids = BTreeMap::new();
        for (name, id) in names.iter().zip(0..) {
            if ids.insert(name.clone(), id).is_some() {
                return Err(SampleError::DuplicateLabel { label: name.clone() }.into());
            }
        }
        let numbers = (0..).take(names.len()).collect();
        Ok(Self { names, ids, numbers })
    }

    /// Returns these labels with the ids of a model that orders them differently, or `None` if the model has other
    /// labels.
    ///
    /// A number in a record keeps its meaning: it stands for the name that had this index here. If the labels are
    /// themselves the numbers from 0 on, as in data without names, the numbers are the ids of the model's labels.
    ///
    /// ```
    /// use firebrick_datasets::collators::Labels;
    ///
    /// let model = ["pos", "neg"].map(String::from);
    /// let labels = Labels::collect(["neg", "pos"])?.ordered_as(&model).unwrap();
    /// assert_eq!((labels.id("pos"), labels.id("neg")), (Some(0), Some(1)));
    /// assert_eq!(Labels::collect(["1", "0"])?.ordered_as(&model).unwrap().names(), ["pos", "neg"]);
    /// assert_eq!(Labels::collect(["neg", "neutral"])?.ordered_as(&model), None);
    /// # Ok::<(), firebrick_datasets::DataError>(())
    /// ```
    pub fn ordered_as(&self, names: &[String]) -> Option<Self> {
        let ordered = Self::new(names.iter().cloned()).ok().filter(|ordered| ordered.len() == self.len())?;
        match self.names.iter().map(|name| ordered.id(name)).collect::<Option<Vec<_>>>() {
            Some(ids) => {
                let numbers = self.numbers.iter().map(|&id| ids[id as usize]).collect();
                Some(Self { numbers, ..ordered })
            }
            None => {
                let mut places = self.names.iter().zip(0..);
                places.all(|(name, id)| *name == id.to_string()).then_some(ordered)
            }
        }
    }

    /// Collects the distinct names in some data. `O`, the label of words outside any entity, comes first if present;
    /// the others follow by code point, or by value if all are whole numbers. The ids therefore do not depend on the
    /// order of the data, but they do depend on which names occur in it: use the training data and save the names with
    /// the model.
    ///
    /// # Errors
    ///
    /// [`DataError::Zero`] if there are no names.
    pub fn collect<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Result<Self, DataError> {
        let mut names: BTreeSet<String> = names.into_iter().map(Into::into).collect();
        let outside = names.take("O");
        let mut names: Vec<String> = names.into_iter().collect();
        let numbers: Option<Vec<i64>> = names.iter().map(|name| name.parse().ok()).collect();
        if numbers.is_some() {
            names.sort_by_key(|name| name.parse::<i64>().unwrap_or_default());
        }
        Self::new(outside.into_iter().chain(names))
    }

    /// Collects the names in a field of records as [`collect`](Self::collect) does. The field holds a text, a whole
    /// number, or a list of them. If malformed records are skipped, records with any other value are skipped as well.
    ///
    /// # Errors
    ///
    /// The first record error that is not skipped, and those of [`collect`](Self::collect).
    pub fn from_records(
        records: impl IntoIterator<Item = Result<Record, DataError>>,
        field: &str,
        malformed: Malformed,
    ) -> Result<Self, DataError> {
        let skipped = Skipped::default();
        let mut names: BTreeSet<String> = BTreeSet::new();
        for record in records {
            let Some(record) = malformed.keep(record, &skipped)? else { continue };
            for name in malformed.keep(names_in(&record, field), &skipped)?.unwrap_or_default() {
                if !names.contains(&*name) {
                    names.insert(name.into_owned());
                }
            }
        }
        Self::collect(names)
    }

    /// Returns the names in the order of their ids.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the number of classes.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns whether there are no classes, which is never the case.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns the id of a name.
    pub fn id(&self, name: &str) -> Option<i32> {
        self.ids.get(name).copied()
    }

    /// Returns the name of an id.
    pub fn name(&self, id: i32) -> Option<&str> {
        self.names.get(usize::try_from(id).ok()?).map(String::as_str)
    }

    /// Returns the id that a record's value stands for: a name or a number.
    ///
    /// `which` says which value of the field it is, for the error.
    pub(super) fn read(
        &self,
        value: &Value,
        record: &Record,
        field: &str,
        which: impl fmt::Display,
    ) -> Result<i32, DataError> {
        let by_number = |id: i64| self.numbers.get(usize::try_from(id).ok()?).copied();
        let id = match value {
            // A number may be a name, if names were collected from numbers.
            Value::Text(name) => self.id(name).or_else(|| by_number(name.parse().ok()?)),
            Value::Integer(id) => self.id(&id.to_string()).or_else(|| by_number(*id)),
            _ => None,
        };
        id.ok_or_else(|| record.mismatch(field, self.known(), format!("{value}{which}")))
    }

    /// Lists the labels for an error.
    fn known(&self) -> String {
        const SHOWN: usize = 30;
        let shown = self.names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
        let rest = match self.len().saturating_sub(SHOWN) {
            0 => String::new(),
            rest => format!(" and {rest} more"),
        };
        format!("one of the labels {shown}{rest}, or a number from 0 to {}", self.len() - 1)
    }
}

fn names_in<'a>(record: &'a Record, field: &str) -> Result<Vec<Cow<'a, str>>, DataError> {
    let name = |value: &'a Value| match value {
        // An empty cell of a table is no label.
        Value::Text(name) if !name.trim().is_empty() => Some(Cow::from(name)),
        Value::Integer(number) => Some(Cow::from(number.to_string())),
        _ => None,
    };
    let names = match record.get(field) {
        Some(Value::List(values)) => values.iter().map(name).collect(),
        Some(value) => name(value).map(|name| vec![name]),
        None => None,
    };
    names.ok_or_else(|| record.expected(field, "a label, or a list of labels: names or whole numbers"))
}

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::Arc};

    use super::*;
    use crate::Place;

    fn record(label: Value) -> Record {
        Record::new(Place { file: Arc::from(Path::new("a.csv")), line: 4 }, vec![("label".into(), label)])
    }

    #[test]
    fn names_and_numbers() {
        let labels = Labels::new(["no", "yes"]).unwrap();
        for (value, id) in [(Value::Text("yes".into()), 1), (Value::Integer(0), 0)] {
            assert_eq!(labels.read(&value, &record(value.clone()), "label", "").unwrap(), id);
        }
        for value in [Value::Text("maybe".into()), Value::Integer(2), Value::Integer(-1), Value::Null] {
            let error = labels.read(&value, &record(value.clone()), "label", " for word 3").unwrap_err();
            assert_eq!(
                error.to_string(),
                format!(
                    "a.csv:4, field `label`: expected one of the labels no, yes, or a number from 0 to 1, \
                     found {value} for word 3; correct the record, or skip malformed ones (`malformed: Skip`)"
                )
            );
        }
    }

    #[test]
    fn reordering_names_keeps_the_meaning_of_numbers() {
        let model = ["yes", "no", "maybe"].map(String::from);
        let labels = Labels::new(["no", "maybe", "yes"]).unwrap().ordered_as(&model).unwrap();
        assert_eq!(labels.names(), model);
        let id = |value: Value| labels.read(&value, &record(value.clone()), "label", "").unwrap();
        assert_eq!(["yes", "no", "maybe"].map(|name| id(Value::Text(name.into()))), [0, 1, 2]);
        assert_eq!([0, 1, 2].map(|number| id(Value::Integer(number))), [1, 2, 0]);
        // A second reordering gives the same result.
        let again = labels.ordered_as(&["no", "maybe", "yes"].map(String::from)).unwrap();
        assert_eq!(again, Labels::new(["no", "maybe", "yes"]).unwrap());

        for other in [vec!["no", "yes"], vec!["no", "yes", "never"], vec!["0", "1"], vec!["0", "1", "3"]] {
            assert_eq!(Labels::collect(other).unwrap().ordered_as(&model), None);
        }
        let numbers = Labels::collect(["2", "0", "1"]).unwrap().ordered_as(&model).unwrap();
        assert_eq!(numbers, Labels::new(model).unwrap());
    }

    #[test]
    fn collected_from_records() {
        let list = |names: &[&str]| Value::List(names.iter().map(|&name| Value::Text(name.into())).collect());
        let records = [record(list(&["I-B", "O"])), record(Value::Text("A".into())), record(list(&[]))];
        let labels = Labels::from_records(records.map(Ok), "label", Malformed::Stop).unwrap();
        assert_eq!(labels.names(), ["O", "A", "I-B"]);
        assert!(Labels::from_records([Ok(record(Value::Null))], "label", Malformed::Stop).is_err());
    }

    #[test]
    fn refused() {
        assert!(matches!(
            Labels::new(["a", "a"]),
            Err(DataError::Sample(SampleError::DuplicateLabel { .. }))
        ));
        assert!(matches!(Labels::new([""; 0]), Err(DataError::Zero { .. })));
    }
}
