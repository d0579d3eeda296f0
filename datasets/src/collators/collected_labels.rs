//! Collects class names from data.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use super::Labels;
use super::labels::{value_text, values_of};
use crate::{DataError, Malformed, Record, SampleError, Skipped};

/// The number of labels from which on most of them may not occur only once.
const MANY: usize = 200;

/// The number of labels from which on the rest of the data is not read if nearly all of them have occurred only once. Data
/// in which each label comes once before any comes again has fewer labels.
const EARLY: usize = 20_000;

/// The maximum number of bytes in the names of labels that are collected from data: those of many times as many labels as
/// a classifier has.
const LONGEST: usize = 8 << 20;

impl Labels {
    /// Collects the distinct names in some data. `O`, the label of words outside any entity, comes first if present;
    /// the others follow by code point, or by value if all are whole numbers. The ids therefore do not depend on the
    /// order of the data, but they do depend on which names occur in it: use the training data and save the names with
    /// the model. Whole numbers in records are names: one that was not collected is no label.
    ///
    /// # Errors
    ///
    /// [`DataError::Zero`] if there are no names.
    pub fn collect<N: Into<String>>(names: impl IntoIterator<Item = N>) -> Result<Self, DataError> {
        let names: BTreeSet<String> = names.into_iter().map(Into::into).collect();
        let (outside, mut names): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| name == "O");
        let numbers: Option<Vec<i64>> = names.iter().map(|name| name.parse().ok()).collect();
        if numbers.is_some() {
            names.sort_by_key(|name| name.parse::<i64>().unwrap_or_default());
        }
        Self::collected(outside.into_iter().chain(names))
    }

    /// Collects the names in a field of records as [`collect`](Self::collect) does. The field holds a text, a whole
    /// number, a Boolean, or a list of texts and whole numbers. If malformed records are skipped, records with any other
    /// value are skipped as well.
    ///
    /// # Errors
    ///
    /// The first record error that is not skipped; [`SampleError::NoLabels`] if there are no labels; and
    /// [`SampleError::UniqueLabels`] if there are more than 200 and most of them occur only once: a field of ids or texts
    /// is no field of labels. Of such a field, not all records are read.
    pub fn from_records(
        records: impl IntoIterator<Item = Result<Record, DataError>>,
        field: &str,
        malformed: Malformed,
    ) -> Result<Self, DataError> {
        let skipped = Skipped::default();
        // Whether each name occurs again.
        let mut names: BTreeMap<String, bool> = BTreeMap::new();
        let (mut read, mut once, mut bytes) = (0_u64, 0, 0);
        let unique = |labels: usize, once: usize| {
            DataError::Sample(SampleError::UniqueLabels { field: field.to_owned(), labels, once })
        };
        for record in records {
            let Some(record) = malformed.keep(record, &skipped)? else { continue };
            read += 1;
            for name in malformed.keep(names_in(&record, field), &skipped)?.unwrap_or_default() {
                match names.get_mut(&*name) {
                    Some(again) => once -= usize::from(!std::mem::replace(again, true)),
                    None => {
                        (once, bytes) = (once + 1, bytes + name.len());
                        names.insert(name.into_owned(), false);
                    }
                }
            }
            let are_unique = names.len() >= EARLY && once > names.len() / 10 * 9;
            if bytes > LONGEST || are_unique {
                return Err(unique(names.len(), once));
            }
        }
        match names.len() {
            0 => Err(SampleError::NoLabels { field: field.to_owned(), records: read }.into()),
            labels if labels > MANY && once > labels / 2 => Err(unique(labels, once)),
            _ => Self::collect(names.into_keys()),
        }
    }
}

fn names_in<'a>(record: &'a Record, field: &str) -> Result<Vec<Cow<'a, str>>, DataError> {
    let names = values_of(record, field).iter().map(value_text).collect::<Option<_>>();
    let expected = "a label, or a list of labels: names, whole numbers or Booleans";
    names.filter(|_| record.get(field).is_some()).ok_or_else(|| record.expected(field, expected))
}

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::Arc};

    use super::*;
    use crate::{RecordPlace, Value};

    fn record(label: Value) -> Record {
        Record::new(
            RecordPlace { file: Arc::from(Path::new("a.csv")), line: 4 },
            vec![("label".into(), label)],
        )
    }

    #[test]
    fn a_field_of_ids_or_texts_is_no_field_of_labels() {
        let of = |labels: &mut dyn Iterator<Item = usize>| {
            let records = labels.map(|label| Ok(record(Value::Text(format!("l{label}")))));
            Labels::from_records(records, "label", Malformed::Stop)
        };
        let error = of(&mut (0..201)).unwrap_err();
        assert!(matches!(error, DataError::Sample(SampleError::UniqueLabels { labels: 201, once: 201, .. })));
        let error = error.to_string();
        assert!(error.contains("201 of the 201 labels in `label` occur only once"), "{error}");
        assert_eq!(of(&mut (0..200)).unwrap().len(), 200);
        assert_eq!(of(&mut (0..300).chain(0..150)).unwrap().len(), 300);
        assert!(of(&mut (0..300).chain(0..149)).is_err());
        assert_eq!(of(&mut (0..300).chain(0..150).chain(0..150)).unwrap().len(), 300);

        // The rest of a large file is not read, and what was read of it is small.
        let mut ids = 0..usize::MAX;
        let error = of(&mut ids).unwrap_err();
        assert!(
            matches!(error, DataError::Sample(SampleError::UniqueLabels { labels: 20_000, .. })),
            "{error}"
        );
        assert_eq!(ids.start, 20_000);
        let mut texts = 0..usize::MAX;
        let records =
            texts.by_ref().map(|at| Ok(record(Value::Text(format!("{at} {}", "word ".repeat(2_000))))));
        assert!(Labels::from_records(records, "label", Malformed::Stop).is_err());
        assert!(texts.start < 1_000, "{}", texts.start);
        // Many labels that come in turn are labels.
        assert_eq!(of(&mut (0..19_999).chain(0..19_999)).unwrap().len(), 19_999);
    }

    #[test]
    fn collected_from_records() {
        let list = |names: &[&str]| Value::List(names.iter().map(|&name| Value::Text(name.into())).collect());
        let records = [record(list(&["I-B", "O"])), record(Value::Text("A".into())), record(list(&[]))];
        let labels = Labels::from_records(records.map(Ok), "label", Malformed::Stop).unwrap();
        assert_eq!(labels.names(), ["O", "A", "I-B"]);
        assert!(Labels::from_records([Ok(record(Value::Null))], "label", Malformed::Stop).is_err());
        let none = Labels::from_records([Ok(record(list(&[])))], "label", Malformed::Stop).unwrap_err();
        assert!(matches!(none, DataError::Sample(SampleError::NoLabels { records: 1, .. })));
    }
}
