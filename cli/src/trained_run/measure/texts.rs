//! Scores of the texts that a model writes for records, against those that the records expect.

use serde_json::Value;

use super::Measured;
use crate::trained_run::TrainedRun;
use crate::{MeasureError, RunError};
use firebrick_models::WrittenScores;
use firebrick_models::decoding::Decoding;
use firebrick_tasks::Paths;

/// Answers the records, and scores the answers.
pub(super) fn texts(
    trained: &TrainedRun,
    paths: Paths,
    decoding: &Decoding,
    say: &dyn Fn(&str),
) -> Result<Measured, RunError> {
    if trained.run.task.writing().is_none() {
        return Err(RunError::WritesNothing(trained.run.task.name()));
    }
    let mut lines = Vec::new();
    trained.predict(Some(paths), None, decoding, &mut lines, say)?;
    let answers = String::from_utf8_lossy(&lines);
    let answers = answers.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let (mut written, mut wanted, mut missing) = (Vec::new(), Vec::new(), 0);
    for answer in answers {
        let predicted = answer["predicted"].as_str().unwrap_or_default();
        match expected(&answer["expected"]) {
            Some(expected) => {
                written.push(predicted.to_string());
                wanted.push(expected);
            }
            None => missing += 1,
        }
    }
    if missing > 0 || written.is_empty() {
        return Err(MeasureError::NothingExpected { missing, all: missing + written.len() }.into());
    }
    let scores = WrittenScores::of_texts(&written, &wanted);
    let scores = scores.map_err(|error| MeasureError::Scores(error.to_string()))?;
    let tokens = written.iter().map(|text| text.split_whitespace().count()).sum();
    let scores = scores.iter().map(|score| (score.name, score.value));
    Ok(Measured::new("texts", scores, [("records", written.len()), ("words", tokens)]))
}

/// Returns the expected text, or several of which any is right.
fn expected(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(text) => Some(vec![text.clone()]),
        Value::Array(texts) => {
            let texts = texts.iter().map(|text| text.as_str().map(str::to_owned));
            texts.collect::<Option<Vec<_>>>().filter(|texts| !texts.is_empty())
        }
        _ => None,
    }
}
