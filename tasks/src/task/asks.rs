//! What a record asks a trained model.

use firebrick_datasets::{DataError, Record, Tokenizer, Value as Field};
use firebrick_models::inference::Question;
use serde_json::Value;

/// What a record of a [task](super::Task) asks a trained model, and how the model answers.
pub trait Asks {
    /// Returns what a record asks a trained model, and the answer that it expects, if it has one.
    ///
    /// # Errors
    ///
    /// The record lacks a field of the question.
    fn question(&self, record: &Record) -> Result<(Question, Option<Value>), DataError>;

    /// Returns what a record asks a trained model, as [`question`](Self::question) does, where that takes the tokenizer.
    ///
    /// # Errors
    ///
    /// Those of [`question`](Self::question), and those of the tokenizer's chat template.
    fn asked(&self, record: &Record, tokenizer: &Tokenizer) -> Result<(Question, Option<Value>), DataError> {
        let _ = tokenizer;
        self.question(record)
    }

    /// Returns the fields of a record that asks about a line of text, which is not JSON. Default: the field `text`.
    fn typed(&self, line: &str) -> Vec<(String, Field)> {
        vec![("text".into(), Field::Text(line.into()))]
    }

    /// Gives the tokenizer of a trained model what the task sets. Default: nothing.
    ///
    /// # Errors
    ///
    /// The tokenizer does not fit the task's settings.
    fn prepare(&self, tokenizer: Tokenizer) -> Result<Tokenizer, DataError> {
        Ok(tokenizer)
    }

    /// How a model of the task generates texts from prompts; `None` if it does not.
    fn writing(&self) -> Option<Writing> {
        None
    }

    /// Whether a text that is longer than a row is predicted in several rows. Otherwise its end is not read.
    fn predicts_in_parts(&self) -> bool {
        false
    }
}

/// How a model generates texts from prompts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Writing {
    /// It continues the prompt, and reads as much of the prompt's end as it can.
    Continuation,
    /// It answers the prompt as a user's message, by the tokenizer's chat template.
    Answer,
    /// It writes a text from a source: the prompt after this prefix.
    FromSource {
        /// The prefix.
        prefix: String,
    },
}
