//! Preferences.

use std::sync::Arc;

use firebrick_datasets::collators::{Dpo, KeptEnd, PreferenceFields, Preferences};
use firebrick_datasets::{DataError, Record, Reference, Tokenizer, Value as Field};
use firebrick_models::inference::Question;
use firebrick_strategies::SettingError;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::chat::{self, TemplateConfig};
use super::{Asks, Examples, Suggestion, Task, Writing};
use crate::{DataConfig, LoadError, Loaded, Loading};

/// `task: Dpo(..)`: prefers the better of two answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DpoTask {
    /// β, above 0: how strongly the model is kept near its reference. Default: 0.1.
    pub beta: f64,
    /// The share of pairs whose labels are taken to be swapped, at least 0 and below 0.5. Default: 0.
    pub label_smoothing: f64,
    /// The model that the trained one is compared with. Default: `Frozen`.
    pub reference: Reference,
    /// The field of the prompt, which a record may lack: then it is what both answers begin with. Default: `prompt`.
    pub prompt: String,
    /// The field of the better answer. Default: `chosen`.
    pub chosen: String,
    /// The field of the worse answer. Default: `rejected`.
    pub rejected: String,
    /// What is kept of a row with more tokens than `data.max_length`. Default: `Start`.
    pub keep: KeptEnd,
    /// Whether an end token follows each text. Default: yes, if the tokenizer has one.
    pub end: Option<bool>,
    /// Says that the records are conversations, and may name their template. Default: texts, or conversations in the
    /// tokenizer's template.
    pub chat: Option<PreferenceChat>,
}

/// `chat: (..)` of [`DpoTask`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreferenceChat {
    /// The template. Default: the tokenizer's.
    #[serde(default)]
    pub template: Option<TemplateConfig>,
}

impl Default for DpoTask {
    fn default() -> Self {
        let Dpo { beta, label_smoothing, reference } = Dpo::default();
        let PreferenceFields { prompt, chosen, rejected } = PreferenceFields::default();
        let keep = KeptEnd::default();
        Self { beta, label_smoothing, reference, prompt, chosen, rejected, keep, end: None, chat: None }
    }
}

impl DpoTask {
    fn fields(&self) -> PreferenceFields {
        let Self { prompt, chosen, rejected, .. } = self.clone();
        PreferenceFields { prompt, chosen, rejected }
    }

    fn dpo(&self) -> Dpo {
        let Self { beta, label_smoothing, reference, .. } = *self;
        Dpo { beta, label_smoothing, reference }
    }
}

impl Task for DpoTask {
    fn check(&self, _: &DataConfig) -> Result<(), SettingError> {
        match self.dpo().out_of_range() {
            None => Ok(()),
            Some((setting, expected, found)) => SettingError::require(false, setting, expected, found),
        }
    }

    fn check_data(&self, data: &DataConfig) -> Result<(), SettingError> {
        let expected = "left out for Dpo, whose answers are not cut into pieces";
        SettingError::require(data.stride.is_none(), "stride", expected, "given")?;
        let expected =
            "left out for Dpo, which reads no windows: `max_length` bounds a prompt and its answer";
        SettingError::require(data.block.is_none(), "block", expected, "given")?;
        let expected = "given: the most tokens of a prompt and its answer";
        SettingError::require(data.max_length.is_some(), "max_length", expected, "nothing")
    }

    /// The loss is over pairs.
    fn smooths_labels(&self) -> bool {
        false
    }

    fn reference(&self) -> Option<Reference> {
        Some(self.reference)
    }

    fn texts<'r>(&self, record: &'r Record) -> Result<Vec<&'r str>, DataError> {
        Ok(chat::texts_of(record, &[&self.prompt, &self.chosen, &self.rejected]))
    }

    fn load(&self, loading: &Loading<'_>) -> Result<Loaded, LoadError> {
        let tokenizer = Arc::new(self.prepare(Arc::unwrap_or_clone(loading.tokenizer()?))?);
        let pairs = Preferences::new(loading.encoder(&tokenizer, None), self.dpo())?;
        let end = self.end.unwrap_or(tokenizer.special().eos.is_some());
        let pairs = pairs.fields(self.fields()).kept(self.keep).end(end);
        let pairs = pairs.padding(loading.padding(&tokenizer));
        let batches = loading.batches(pairs)?;
        Ok(loading.loaded(tokenizer, batches))
    }

    /// The prompt with the chosen answer.
    fn measured_text(&self, record: &Record, tokenizer: &Tokenizer) -> Result<String, DataError> {
        self.fields().chosen_text(record, tokenizer)
    }

    fn suggest(&self, examples: &Examples) -> Result<Suggestion, String> {
        let [prompt, chosen, rejected] = [&self.prompt, &self.chosen, &self.rejected].map(String::as_str);
        let first = examples.records.first();
        let has = |field: &str| first.is_none_or(|record| record.get(field).is_some());
        if !has(chosen) || !has(rejected) {
            let needed = "each record needs a `chosen` and a `rejected` answer, and perhaps a `prompt`";
            return Err(examples.lack(needed));
        }
        let [better, worse] = [chosen, rejected].map(|answer| examples.length(&[prompt, answer]));
        let longest = if better.0 < worse.0 { worse } else { better };
        let suggestion = Suggestion::default().data("max_length", longest).best_by("reward_margin");
        let is_chat = first.is_some_and(|record| matches!(record.get(chosen), Some(Field::List(_))));
        let found = "pairs of a `chosen` and a `rejected` answer";
        Ok(match (is_chat, &examples.tokenizer) {
            (false, _) => suggestion.special("(eos: \"</s>\")").found(found),
            (true, None) => {
                suggestion.set("chat", "(template: ChatMl)").special(chat::CHATML_TOKENS).found(found)
            }
            (true, Some(tokenizer)) if tokenizer.chat_template().is_ok() => {
                suggestion.set("chat", "()").found(format!("{found}, in the template of the model's folder"))
            }
            (true, Some(_)) => {
                return Err(format!(
                    "{found} are conversations, but the tokenizer of the model's folder has no chat template: take \
                     the folder of a model that was trained on conversations (an \"instruct\" or \"chat\" model)"
                ));
            }
        })
    }

    /// The last token is only a label.
    fn unread(&self) -> usize {
        1
    }
}

impl Asks for DpoTask {
    /// A record's prompt, with the chosen answer as the expected one.
    fn question(&self, record: &Record) -> Result<(Question, Option<Value>), DataError> {
        let (prompt, answer) = self.fields().question(record, None)?;
        Ok((Question::Text(prompt), answer.map(Value::from)))
    }

    fn asked(&self, record: &Record, tokenizer: &Tokenizer) -> Result<(Question, Option<Value>), DataError> {
        let (prompt, answer) = self.fields().question(record, Some(tokenizer))?;
        Ok((Question::Text(prompt), answer.map(Value::from)))
    }

    fn typed(&self, line: &str) -> Vec<(String, Field)> {
        match &self.chat {
            Some(_) => {
                let messages = chat::typed(line).into_iter().map(|(_, messages)| messages);
                messages.map(|messages| (self.prompt.clone(), messages)).collect()
            }
            None => vec![(self.prompt.clone(), Field::Text(line.into()))],
        }
    }

    fn prepare(&self, tokenizer: Tokenizer) -> Result<Tokenizer, DataError> {
        match self.chat.as_ref().and_then(|chat| chat.template.as_ref()) {
            Some(template) => template.prepare(tokenizer),
            None => Ok(tokenizer),
        }
    }

    fn writing(&self) -> Option<Writing> {
        Some(if self.chat.is_some() { Writing::Answer } else { Writing::Continuation })
    }
}
