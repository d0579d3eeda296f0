//! Class names and their ids.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use serde::Serialize;

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
    numbers: Numbers,
}

/// What whole numbers in records stand for. One answer holds for all records that [`Labels`] read: a file in which the
/// label `1` is sometimes a name and sometimes an id would have two meanings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum Numbers {
    /// The name that is written like the number.
    Names,
    /// The id at the number's place in this list.
    Ids(Vec<i32>),
}

impl Labels {
    /// Creates labels from names. The id of a name is its index.
    ///
    /// Whole numbers in records are ids, unless a name is a whole number: then they are names.
    /// [`for_records`](Self::for_records) looks at the data to tell.
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
        let labels = Self { names, ids, numbers: Numbers::Names };
        Ok(if labels.is_ambiguous() { labels } else { labels.numbered() })
    }

    /// Creates labels from names that were collected from data, in the order of their ids. Whole numbers in records are
    /// names: one that was not collected is no label.
    ///
    /// # Errors
    ///
    /// Those of [`new`](Self::new).
    pub fn collected<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Result<Self, DataError> {
        Ok(Self { numbers: Numbers::Names, ..Self::new(names)? })
    }

    /// Returns these labels for data in which whole numbers are ids.
    pub fn numbered(self) -> Self {
        let numbers = Numbers::Ids((0..).take(self.len()).collect());
        Self { numbers, ..self }
    }

    /// Returns these labels for data in which whole numbers are places in this list of names, as those of a `ClassLabel`
    /// are; `None` if one of the names is not a label.
    ///
    /// ```
    /// use firebrick_datasets::collators::{Labels, Numbers};
    ///
    /// let labels = Labels::new(["pos", "neg"])?.numbered_as(&["neg", "pos"].map(String::from)).unwrap();
    /// assert_eq!(*labels.numbers(), Numbers::Ids(vec![1, 0]));
    /// # Ok::<(), firebrick_datasets::DataError>(())
    /// ```
    pub fn numbered_as(self, names: &[String]) -> Option<Self> {
        let ids = names.iter().map(|name| self.id(name)).collect::<Option<_>>()?;
        Some(Self { numbers: Numbers::Ids(ids), ..self })
    }

    /// Creates labels from names for records in which whole numbers are names throughout, or ids throughout. If names
    /// are whole numbers, the records tell which of both fits all of them; names, if both fit.
    ///
    /// ```
    /// use std::{path::Path, sync::Arc};
    /// use firebrick_datasets::collators::{Labels, Numbers};
    /// use firebrick_datasets::{Malformed, Record, RecordPlace, Value};
    ///
    /// let records = |labels: [i64; 3]| {
    ///     labels.map(|label| {
    ///         let place = RecordPlace { file: Arc::from(Path::new("stars.jsonl")), line: 1 };
    ///         Ok(Record::new(place, vec![("label".into(), Value::Integer(label))]))
    ///     })
    /// };
    /// let of = |labels| Labels::for_records(["1", "2", "3"], records(labels), "label", Malformed::Stop);
    /// assert_eq!(*of([1, 3, 2])?.numbers(), Numbers::Names);
    /// assert_eq!(*of([1, 0, 2])?.numbers(), Numbers::Ids(vec![0, 1, 2]));
    /// assert!(of([1, 0, 3]).is_err());
    /// # Ok::<(), firebrick_datasets::DataError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`new`](Self::new) and of the records. If numbers are neither all names nor all ids, the first record
    /// that does not fit the more frequent reading, unless such records are skipped.
    pub fn for_records<N: Into<String>>(
        names: impl IntoIterator<Item = N>,
        records: impl IntoIterator<Item = Result<Record, DataError>>,
        field: &str,
        malformed: Malformed,
    ) -> Result<Self, DataError> {
        let by_name = Self::new(names)?;
        if !by_name.is_ambiguous() {
            return Ok(by_name);
        }
        let by_id = by_name.clone().numbered();
        let skipped = Skipped::default();
        let mut misfits = [(0_u64, None), (0, None)];
        for record in records {
            let Some(record) = malformed.keep(record, &skipped)? else { continue };
            for value in values_of(&record, field) {
                if !value_text(value).is_some_and(|text| is_number(&text)) {
                    continue;
                }
                for ((count, first), labels) in misfits.iter_mut().zip([&by_name, &by_id]) {
                    if let Err(error) = labels.read(value, &record, field, "") {
                        *count += 1;
                        first.get_or_insert(error);
                    }
                }
            }
        }
        let [(of_names, not_a_name), (of_ids, not_an_id)] = misfits;
        let (labels, misfit) = if of_names <= of_ids { (by_name, not_a_name) } else { (by_id, not_an_id) };
        if let Some(error) = misfit {
            malformed.keep::<()>(Err(error), &skipped)?;
        }
        Ok(labels)
    }

    /// Returns these labels with the ids of a model that orders them differently, or `None` if the model has other
    /// labels.
    ///
    /// A number in a record keeps its meaning. If the labels are themselves the numbers from 0 on, as in data without
    /// names, or `false` and `true`, they are the ids of the model's labels.
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
        match (self.names.iter().map(|name| ordered.id(name)).collect::<Option<Vec<_>>>(), &self.numbers) {
            (Some(_), Numbers::Names) => Some(Self { numbers: Numbers::Names, ..ordered }),
            (Some(ids), Numbers::Ids(numbers)) => {
                let numbers = numbers.iter().map(|&id| ids[id as usize]).collect();
                Some(Self { numbers: Numbers::Ids(numbers), ..ordered })
            }
            (None, _) => (self.are_ids() || self.names == ["false", "true"]).then(|| ordered.numbered()),
        }
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

    /// Returns what whole numbers in records stand for.
    pub fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    /// Returns whether a whole number may be a name and the id of another name: some names are whole numbers, and they
    /// are not the ids.
    pub fn is_ambiguous(&self) -> bool {
        self.names.iter().any(|name| is_number(name)) && !self.are_ids()
    }

    /// Returns whether each name is its id.
    fn are_ids(&self) -> bool {
        self.names.iter().enumerate().all(|(id, name)| *name == id.to_string())
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
        let id = value_text(value).and_then(|text| match &self.numbers {
            // A number below 0 is no id, even if a label is called so.
            Numbers::Ids(ids) if is_number(&text) => ids.get(text.parse::<usize>().ok()?).copied(),
            _ => self.id(&text),
        });
        let id = id.or_else(|| if let Value::Bool(value) = value { self.of_bool(*value) } else { None });
        id.ok_or_else(|| record.mismatch(field, self.known(), format!("{value}{which}")))
    }

    /// Returns the id of a Boolean that is not a name as it is written here: Python writes it with a capital, and counts
    /// it as 0 or 1.
    fn of_bool(&self, value: bool) -> Option<i32> {
        match &self.numbers {
            _ if self.id("True").or(self.id("False")).is_some() => {
                self.id(if value { "True" } else { "False" })
            }
            Numbers::Ids(ids) if self.id("true").or(self.id("false")).is_none() => {
                ids.get(usize::from(value)).copied()
            }
            _ => None,
        }
    }

    /// Lists the labels for an error.
    fn known(&self) -> String {
        const SHOWN: usize = 30;
        let shown = self.names.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
        let rest = match self.len().saturating_sub(SHOWN) {
            0 => String::new(),
            rest => format!(" and {rest} more"),
        };
        match &self.numbers {
            Numbers::Names => format!("one of the labels {shown}{rest}"),
            Numbers::Ids(ids) if self.is_ambiguous() => {
                format!("a number from 0 to {}, the id of one of the labels {shown}{rest}", ids.len() - 1)
            }
            Numbers::Ids(ids) => {
                format!("one of the labels {shown}{rest}, or a number from 0 to {}", ids.len() - 1)
            }
        }
    }
}

fn is_number(name: &str) -> bool {
    name.parse::<i64>().is_ok()
}

/// Returns a label as text; `None` if the value is no label.
pub(super) fn value_text(value: &Value) -> Option<Cow<'_, str>> {
    /// The largest number up to which floats hold every whole number.
    const WHOLE: f64 = 9_007_199_254_740_992.0;
    match value {
        // An empty cell of a table is no label.
        Value::Text(name) if !name.trim().is_empty() => Some(name.into()),
        Value::Integer(number) => Some(number.to_string().into()),
        Value::Bool(value) => Some(value.to_string().into()),
        // Tables with empty cells often hold whole numbers as floats.
        Value::Float(number) if number.fract() == 0.0 && number.abs() <= WHOLE => {
            Some((*number as i64).to_string().into())
        }
        _ => None,
    }
}

/// Returns the values of a field that holds a label or a list of labels.
pub(super) fn values_of<'a>(record: &'a Record, field: &str) -> &'a [Value] {
    match record.get(field) {
        Some(Value::List(values)) => values,
        Some(value) => std::slice::from_ref(value),
        None => &[],
    }
}

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::Arc};

    use super::*;
    use crate::RecordPlace;

    fn record(label: Value) -> Record {
        Record::new(
            RecordPlace { file: Arc::from(Path::new("a.csv")), line: 4 },
            vec![("label".into(), label)],
        )
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

    fn ids(labels: &Labels, values: &[Value]) -> Vec<Option<i32>> {
        values.iter().map(|value| labels.read(value, &record(value.clone()), "label", "").ok()).collect()
    }

    fn integers(numbers: impl IntoIterator<Item = i64>) -> Vec<Value> {
        numbers.into_iter().map(Value::Integer).collect()
    }

    fn decided(names: &[&str], values: &[Value]) -> Result<Labels, DataError> {
        let records = values.iter().map(|value| Ok(record(value.clone())));
        Labels::for_records(names.iter().copied(), records, "label", Malformed::Stop)
    }

    /// The data decides once; no value is read in another way than the others.
    #[test]
    fn numbers_are_names_or_ids_throughout() {
        let stars = ["1", "2", "3", "4", "5"];
        let all = |ids: &[i32]| ids.iter().copied().map(Some).collect::<Vec<_>>();
        let (from_0, from_1) = (integers(0..5), integers(1..6));
        let labels = decided(&stars, &from_0).unwrap();
        assert_eq!(ids(&labels, &from_0), all(&[0, 1, 2, 3, 4]));
        assert_eq!(ids(&labels, &[Value::Text("5".into()), Value::Text("1".into())]), [None, Some(1)]);
        let labels = decided(&stars, &from_1).unwrap();
        assert_eq!(ids(&labels, &from_1), all(&[0, 1, 2, 3, 4]));
        assert_eq!(ids(&labels, &integers([0, 6])), [None, None]);
        // Texts of numbers, as in tables, and lists are read alike.
        let texts = |numbers: &[Value]| -> Vec<Value> {
            let text = |value: &Value| if let Value::Integer(n) = value { n.to_string() } else { "".into() };
            numbers.iter().map(|value| Value::Text(text(value))).collect()
        };
        assert_eq!(ids(&decided(&stars, &texts(&from_0)).unwrap(), &from_0), all(&[0, 1, 2, 3, 4]));
        assert_eq!(
            ids(&decided(&stars, &[Value::List(from_0.clone())]).unwrap(), &from_0),
            all(&[0, 1, 2, 3, 4])
        );
        // Names decide if both readings fit.
        assert_eq!(*decided(&stars, &integers([1, 2, 4])).unwrap().numbers(), Numbers::Names);

        let error = decided(&stars, &integers(0..6)).unwrap_err().to_string();
        assert!(
            error.contains("a.csv:4, field `label`: expected one of the labels 1, 2, 3, 4, 5, found"),
            "{error}"
        );
        let error = decided(&stars, &integers([0, 0, 2, 5])).unwrap_err().to_string();
        let expected =
            "expected a number from 0 to 4, the id of one of the labels 1, 2, 3, 4, 5, found the number 5";
        assert!(error.contains(expected), "{error}");
        // A number below 0 is read like the others.
        let signed = ["-1", "0", "1"];
        assert_eq!(ids(&decided(&signed, &integers(-1..2)).unwrap(), &integers(-1..2)), all(&[0, 1, 2]));
        let labels = decided(&signed, &integers(0..3)).unwrap();
        assert_eq!(ids(&labels, &integers(-1..3)), [None, Some(0), Some(1), Some(2)]);
        assert!(decided(&signed, &integers(-1..3)).is_err());
        let records = [0, 0, 2, 5].map(|label| Ok(record(Value::Integer(label))));
        let kept = Labels::for_records(stars, records, "label", Malformed::Skip).unwrap();
        assert_eq!(ids(&kept, &integers([0, 5])), [Some(0), None]);
    }

    /// A label that training lacks is no label, not the id of another one.
    #[test]
    fn collected_numbers_are_names() {
        let stars = Labels::collect(["1", "2", "3"]).unwrap();
        assert_eq!(ids(&stars, &integers([0, 1, 3, 4])), [None, Some(0), Some(2), None]);
        assert_eq!(ids(&Labels::collect(["no", "yes"]).unwrap(), &integers([0, 1])), [None, None]);
    }

    /// Data of ids keeps its meaning with a classifier whose labels are called like numbers.
    #[test]
    fn ids_of_a_model_with_numbers_as_names() {
        let model = ["1", "2", "3"].map(String::from);
        let of_ids = Labels::collect(["0", "1", "2"]).unwrap().ordered_as(&model).unwrap();
        assert_eq!(ids(&of_ids, &integers([0, 1, 2, 3])), [Some(0), Some(1), Some(2), None]);
        let of_names = Labels::collect(["1", "2", "3"]).unwrap().ordered_as(&model).unwrap();
        assert_eq!(ids(&of_names, &integers([0, 1, 2, 3])), [None, Some(0), Some(1), Some(2)]);
        assert_eq!(Labels::collect(["0", "1", "3"]).unwrap().ordered_as(&model), None);
    }

    #[test]
    fn numbers_of_a_class_label() {
        let names = ["neg", "pos"].map(String::from);
        let labels = Labels::new(["pos", "neg"]).unwrap().numbered_as(&names).unwrap();
        assert_eq!(ids(&labels, &[Value::Integer(0), Value::Text("neg".into())]), [Some(1), Some(1)]);
        assert_eq!(Labels::new(["pos", "other"]).unwrap().numbered_as(&names), None);
        let model = ["pos", "neg"].map(String::from);
        let ordered = Labels::new(names).unwrap().ordered_as(&model).unwrap();
        assert_eq!(ids(&ordered, &integers([0, 1, -1])), [Some(1), Some(0), None]);
    }

    #[test]
    fn booleans_and_whole_floats() {
        let bools = [false, true].map(Value::Bool);
        let collected = |values: &[Value]| {
            let records = values.iter().map(|value| Ok(record(value.clone())));
            Labels::from_records(records, "label", Malformed::Stop)
        };
        let labels = collected(&bools).unwrap();
        assert_eq!(labels.names(), ["false", "true"]);
        assert_eq!(ids(&labels, &bools), [Some(0), Some(1)]);
        for names in [["False", "True"], ["no", "yes"]] {
            assert_eq!(ids(&Labels::new(names).unwrap(), &bools), [Some(0), Some(1)], "{names:?}");
        }
        assert_eq!(ids(&Labels::new(["True", "False"]).unwrap(), &bools), [Some(1), Some(0)]);
        let model = ["neg", "pos"].map(String::from);
        assert_eq!(ids(&labels.ordered_as(&model).unwrap(), &bools), [Some(0), Some(1)]);

        let floats = [2.0, 0.0, 1.0].map(Value::Float);
        let labels = collected(&floats).unwrap();
        assert_eq!(labels.names(), ["0", "1", "2"]);
        assert_eq!(ids(&labels, &floats), [Some(2), Some(0), Some(1)]);
        for float in [0.5, f64::NAN, f64::INFINITY, 1e300] {
            assert!(collected(&[Value::Float(float)]).is_err(), "{float}");
        }
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
