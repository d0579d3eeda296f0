//! The prediction of masked tokens.

use firebrick_datasets::collators::{MaskedLm, Masking};
use firebrick_datasets::{DataError, Record, Value as Field};
use firebrick_models::inference::Question;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Asks, Examples, Suggestion, Task};
use crate::{LoadError, Loaded, Loading};

/// `task: MaskedLm(..)`: predicts masked tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MaskedLmTask {
    /// The field of the text. Default: `text`.
    pub text: String,
    /// How many tokens are masked, and with what:
    /// `(probability: 0.15, masked: 0.8, random: 0.1, whole_words: false)`. It uses the run's seed.
    pub masking: Masking,
}

impl Default for MaskedLmTask {
    fn default() -> Self {
        Self { text: "text".into(), masking: Masking::default() }
    }
}

impl Task for MaskedLmTask {
    fn texts<'r>(&self, record: &'r Record) -> Result<Vec<&'r str>, DataError> {
        Ok(vec![record.text(&self.text)?])
    }

    fn load(&self, loading: &Loading<'_>) -> Result<Loaded, LoadError> {
        let tokenizer = loading.tokenizer()?;
        let masking = self.masking.seed(loading.seed());
        let collator = MaskedLm::new(loading.encoder(&tokenizer, None), masking).field(&self.text);
        let batches = loading.batches(collator.padding(loading.padding(&tokenizer)))?;
        Ok(loading.loaded(tokenizer, batches))
    }

    fn suggest(&self, examples: &Examples) -> Result<Suggestion, String> {
        let field = match examples.text(&[]) {
            Some(field) => field,
            None if examples.records.is_empty() => Self::default().text,
            None => return Err(examples.lack("each record needs a text")),
        };
        let suggestion = Suggestion::default().data("max_length", examples.length(&[&field]));
        let suggestion = suggestion.special("(pad: \"<pad>\", mask: \"<mask>\")");
        Ok(suggestion.field("text", &field, "text").found(format!("the texts are in `{field}`")))
    }
}

impl Asks for MaskedLmTask {
    fn question(&self, record: &Record) -> Result<(Question, Option<Value>), DataError> {
        Ok((Question::Text(record.text(&self.text)?.into()), None))
    }

    fn typed(&self, line: &str) -> Vec<(String, Field)> {
        vec![(self.text.clone(), Field::Text(line.into()))]
    }
}
