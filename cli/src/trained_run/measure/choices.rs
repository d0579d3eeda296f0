//! Multiple choice by likelihood, as EleutherAI's lm-evaluation-harness measures it.

use firebrick_datasets::{DataError, ReadError, Record, Skipped, Value};

use super::Measured;
use super::likelihood::{Likelihood, Row};
use crate::{MeasureError, Run, RunError};
use firebrick_tasks::{Paths, progress, tell_skipped};

/// What stands between a context and an ending, the harness's `target_delimiter`.
const DELIMITER: &str = " ";

/// A question with its possible endings.
#[derive(Debug, PartialEq)]
struct Choice {
    context: String,
    endings: Vec<String>,
    /// The index of the right ending.
    right: usize,
}

impl Choice {
    /// Reads a question: `context`, `endings` and `label`, or what the data sets on the Hub call them. The label is an
    /// index, its digits, a letter, or the right ending itself; choices may have names, as those of ARC.
    ///
    /// # Errors
    ///
    /// The record lacks a field of a question.
    fn read(record: &Record) -> Result<Self, DataError> {
        let failed = |expected: &str| {
            let (place, names) = (record.place().clone(), record.names().collect::<Vec<_>>().join(", "));
            let found = format!("a record with the fields {names}");
            DataError::Read(ReadError::Record { place, field: None, expected: expected.into(), found })
        };
        let any = |names: &[&str]| names.iter().find_map(|name| record.get(name)).cloned();
        let Some(Value::Text(context)) = any(&["context", "ctx", "query", "question"]) else {
            return Err(failed("a text `context` (or `ctx`, `query`, `question`)"));
        };
        let endings = any(&["endings", "choices"]);
        let (endings, names) = match &endings {
            Some(Value::Map(fields)) => {
                let field = |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| value);
                (texts(field("text")), texts(field("label")).unwrap_or_default())
            }
            other => (texts(other.as_ref()), Vec::new()),
        };
        let Some(endings) = endings.filter(|endings| endings.len() > 1) else {
            return Err(failed("a list `endings` (or `choices`) of at least two texts"));
        };
        let labels = ["label", "answer", "gold", "answerKey"];
        let Some((field, label)) = labels.into_iter().find_map(|name| Some((name, record.get(name)?))) else {
            return Err(failed("a `label` (or `answer`, `gold`, `answerKey`)"));
        };
        let right = match label {
            Value::Integer(index) => usize::try_from(*index).ok(),
            Value::Text(text) => named(text, &endings, &names),
            _ => None,
        };
        match right.filter(|right| *right < endings.len()) {
            Some(right) => Ok(Self { context, endings, right }),
            None => {
                let last = endings.len() - 1;
                let expected =
                    format!("the index of an ending from 0 to {last}, its letter, or the ending itself");
                Err(record.expected(field, expected))
            }
        }
    }
}

/// Returns the texts of a list.
fn texts(value: Option<&Value>) -> Option<Vec<String>> {
    let Some(Value::List(values)) = value else { return None };
    let text = |value: &Value| match value {
        Value::Text(text) => Some(text.clone()),
        _ => None,
    };
    values.iter().map(text).collect()
}

/// Returns the index of the ending that a label names.
fn named(label: &str, endings: &[String], names: &[String]) -> Option<usize> {
    let equal = |among: &[String]| among.iter().position(|one| one == label);
    let letter = || match label.as_bytes() {
        [letter @ b'A'..=b'Z'] => Some(usize::from(letter - b'A')),
        _ => None,
    };
    equal(names).or_else(|| equal(endings)).or_else(|| label.parse().ok()).or_else(letter)
}

/// Measures the share of questions whose right ending is the most likely one: `acc` by the likelihood of the ending, and
/// `acc_norm` by its logarithm per character.
pub(super) fn choices(
    run: &Run,
    model: &Likelihood,
    paths: &Paths,
    begins: bool,
    say: &dyn Fn(&str),
) -> Result<Measured, RunError> {
    let special = model.tokenizer.special();
    if begins && special.bos.or(special.eos).is_none() {
        return Err(MeasureError::NoBeginToken.into());
    }
    let reader = paths.open(run.data.format.as_ref())?;
    let mut progress = progress(say, "questions");
    let (skipped, mut right, mut all, mut tokens) = (Skipped::default(), [0usize; 2], 0, 0);
    for part in 0..reader.parts() {
        for record in reader.open(part)? {
            let asked = record.and_then(|record| Ok((Choice::read(&record)?, record)));
            let Some((choice, record)) = run.data.malformed.keep(asked, &skipped)? else { continue };
            let mut likely = Vec::new();
            for ending in &choice.endings {
                let row = row(model, &choice.context, ending, begins, &record)?;
                let (loss, items) = model.of(vec![row])?;
                tokens += items;
                likely.push((-loss, -loss / ending.chars().count().max(1) as f64));
            }
            all += 1;
            right[0] += usize::from(best(likely.iter().map(|(whole, _)| *whole)) == choice.right);
            right[1] += usize::from(best(likely.iter().map(|(_, each)| *each)) == choice.right);
            progress(all);
        }
    }
    tell_skipped(&skipped, say);
    if all == 0 {
        return Err(MeasureError::Nothing.into());
    }
    let [acc, acc_norm] = right.map(|right| right as f64 / all as f64);
    let scores = [("acc", acc), ("acc_norm", acc_norm)];
    Ok(Measured::new("choices", scores, [("questions", all), ("tokens", tokens)]))
}

/// Returns the index of the largest number, the first of equal ones.
fn best(numbers: impl Iterator<Item = f64>) -> usize {
    let better = |best: (usize, f64), one: (usize, f64)| if one.1 > best.1 { one } else { best };
    numbers.enumerate().reduce(better).map_or(0, |(index, _)| index)
}

/// Returns the tokens of a context and an ending, of which those of the ending count. As in the harness, both are encoded
/// together, white space at the context's end belongs to the ending, and a context that is too long loses its beginning.
fn row(
    model: &Likelihood,
    context: &str,
    ending: &str,
    begins: bool,
    record: &Record,
) -> Result<Row, RunError> {
    let (tokenizer, place) = (&model.tokenizer, || record.place().to_string());
    let special = tokenizer.special();
    let read = context.trim_end();
    let ending = format!("{}{DELIMITER}{ending}", &context[read.len()..]);
    let mut ids = tokenizer.encode(&format!("{read}{ending}"))?;
    let counted = ids.len().saturating_sub(tokenizer.encode(read)?.len());
    if begins || counted == ids.len() {
        let begin = special.bos.or(special.eos).ok_or_else(|| MeasureError::NoBegin { place: place() })?;
        ids.insert(0, begin);
    }
    if let Some(positions) = model.positions {
        if counted > positions {
            return Err(MeasureError::Ending { place: place(), tokens: counted, positions }.into());
        }
        // The last token is not read.
        ids.drain(..ids.len().saturating_sub(positions + 1));
    }
    Ok(Row { ids, counted })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use firebrick_datasets::RecordPlace;

    use super::*;

    fn read(fields: &[(&str, Value)]) -> Result<Choice, DataError> {
        let fields = fields.iter().map(|(name, value)| ((*name).into(), value.clone())).collect();
        Choice::read(&Record::new(RecordPlace { file: Path::new("a.jsonl").into(), line: 1 }, fields))
    }

    fn text(text: &str) -> Value {
        Value::Text(text.into())
    }

    fn list(texts: &[&str]) -> Value {
        Value::List(texts.iter().map(|one| text(one)).collect())
    }

    #[test]
    fn a_question_has_the_names_that_data_sets_give_it() {
        let endings = list(&["red", "blue", "green"]);
        let expected = |right| Choice {
            context: "the sky is".into(),
            endings: ["red", "blue", "green"].map(String::from).into(),
            right,
        };
        for (label, right) in [(Value::Integer(2), 2), (text("1"), 1), (text("C"), 2), (text("blue"), 1)] {
            let fields = [("ctx", text("the sky is")), ("endings", endings.clone()), ("label", label)];
            assert_eq!(read(&fields).unwrap(), expected(right));
        }
        let named =
            Value::Map(vec![("text".into(), endings.clone()), ("label".into(), list(&["1", "2", "3"]))]);
        let fields = [("question", text("the sky is")), ("choices", named), ("answerKey", text("2"))];
        assert_eq!(read(&fields).unwrap(), expected(1));
        for fields in [
            vec![("endings", endings.clone()), ("label", Value::Integer(0))],
            vec![("ctx", text("a")), ("endings", list(&["one"])), ("label", Value::Integer(0))],
            vec![("ctx", text("a")), ("endings", endings.clone())],
        ] {
            let error = read(&fields).unwrap_err().to_string();
            assert!(error.contains("found a record with the fields "), "{error}");
        }
        for (label, shown) in [
            (Value::Integer(3), "3"),
            (Value::Integer(-1), "-1"),
            (text("pink"), "pink"),
            (Value::Float(0.5), "0.5"),
        ] {
            let fields = [("ctx", text("a")), ("endings", endings.clone()), ("gold", label)];
            let error = read(&fields).unwrap_err().to_string();
            let expected = "field `gold`: expected the index of an ending from 0 to 2, its letter";
            assert!(error.contains(expected) && error.contains(shown), "{error}");
        }
    }

    #[test]
    fn of_equal_numbers_the_first_is_best() {
        assert_eq!(best([-2.0, -1.0, -1.0].into_iter()), 1);
    }
}
