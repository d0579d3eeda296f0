//! The prediction of the next token.

use std::sync::Arc;

use firebrick_datasets::collators::CausalLm;
use firebrick_datasets::{ChatFormat, DataError, Record, Tokenizer, Value as Field};
use firebrick_models::inference::Question;
use firebrick_strategies::SettingError;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::chat::{self, ChatConfig};
use super::fields::record_json;
use super::{Asks, Examples, Suggestion, Task, Writing};
use crate::load::Documents;
use crate::{DataConfig, LoadError, Loaded, Loading};

/// `task: CausalLm(..)`: predicts the next token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CausalLmTask {
    /// Whether rows are windows of one long text, padded samples, or packed samples. Default: `Windows`.
    pub rows: Rows,
    /// The field of the text, or of the completion if there is a prompt. Default: `text`.
    pub text: String,
    /// The field of a prompt, which the model reads but which does not count in the loss. Default: none.
    pub prompt: Option<String>,
    /// Whether an end token follows each text that does not end in one. Default: yes, if the tokenizer has one. What the
    /// tokenizer itself puts around a text, such as a begin token, is always there.
    pub end: Option<bool>,
    /// Reads conversations instead of texts. Default: no.
    pub chat: Option<ChatConfig>,
}

/// A row of a causal language model's batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rows {
    /// A window of one long text with `data.block` tokens to predict.
    #[default]
    Windows,
    /// A sample, padded.
    Samples,
    /// As many whole samples as fit into `data.max_length`, kept apart.
    Packed,
}

impl Default for CausalLmTask {
    fn default() -> Self {
        Self { rows: Rows::Windows, text: "text".into(), prompt: None, end: None, chat: None }
    }
}

impl CausalLmTask {
    /// The documents of a long text.
    pub(crate) fn documents(&self) -> Documents<'_> {
        Documents { text: &self.text, end: self.end }
    }

    /// Checks the data's settings for windows of one long text.
    fn check_windows(data: &DataConfig) -> Result<(), SettingError> {
        let unused = "left out where `rows` are windows of one text";
        let mix = "left out where `rows` are windows of one text: only samples are mixed";
        SettingError::require(data.mix.is_empty(), "mix", mix, data.mix.len())?;
        let stream = "left out where `rows` are windows: a token file is what streams them";
        SettingError::require(data.stream.is_none(), "stream", stream, data.stream.unwrap_or(0))?;
        for (is_given, setting) in [
            (data.max_length.is_some(), "max_length"),
            (data.stride.is_some(), "stride"),
            (data.padding.is_some(), "padding"),
            (data.group_by_length, "group_by_length"),
        ] {
            SettingError::require(!is_given, setting, unused, "given")?;
        }
        let needed = "given: tokens that a window predicts";
        SettingError::require(data.block.is_some(), "block", needed, "nothing")
    }

    /// Checks the data's settings for padded or packed samples.
    fn check_samples(&self, data: &DataConfig) -> Result<(), SettingError> {
        let whole = "left out where `chat` is given: conversations are not cut into pieces";
        SettingError::require(self.chat.is_none() || data.stride.is_none(), "stride", whole, "given")?;
        if self.rows == Rows::Packed {
            let grouped = "left out where samples are packed";
            SettingError::require(!data.group_by_length, "group_by_length", grouped, "given")?;
            let stream = "left out where samples are packed: that takes all of their lengths";
            SettingError::require(data.stream.is_none(), "stream", stream, "given")?;
        }
        let is_given = data.max_length.is_some() || data.block.is_some();
        SettingError::require(is_given, "max_length", "given: the most tokens of a sample", "nothing")
    }

    fn samples(&self, loading: &Loading<'_>) -> Result<Loaded, LoadError> {
        let mut tokenizer = loading.tokenizer()?;
        if let Some(chat) = &self.chat {
            tokenizer = Arc::new(chat.prepare(Arc::unwrap_or_clone(tokenizer))?);
        }
        let collator = CausalLm::new(loading.encoder(&tokenizer, None)).padding(loading.padding(&tokenizer));
        let collator = match &self.prompt {
            Some(prompt) => collator.prompted(prompt, &self.text),
            None => collator.field(&self.text),
        };
        let collator = collator.end(self.end.unwrap_or(tokenizer.special().eos.is_some()));
        let chat = self.chat.as_ref().map(|chat| tokenizer.chat_template().map(|of| chat.encoder(of)));
        let chat = chat.transpose()?;
        let collator = match &chat {
            Some(chat) => collator.chat(chat.clone()),
            None => collator,
        };
        let batches = match self.rows {
            Rows::Packed => loading.packed(collator, &tokenizer)?,
            Rows::Samples | Rows::Windows => loading.batches(collator)?,
        };
        if chat.is_some() && tokenizer.end_of_turn().is_none() {
            loading.say(
                "the chat template writes no special token after an answer, so generated answers do not end",
            );
        }
        Ok(loading.loaded(tokenizer, batches))
    }
}

impl Task for CausalLmTask {
    fn check(&self, _: &DataConfig) -> Result<(), SettingError> {
        if self.chat.is_some() {
            let whole = "`Samples` or `Packed` where `chat` is given: conversations stay whole";
            SettingError::require(self.rows != Rows::Windows, "rows", whole, "Windows")?;
            let unused = "left out where `chat` is given: the template ends each answer";
            SettingError::require(self.end.is_none(), "end", unused, "given")?;
            let unused = "left out where `chat` is given: `chat.records` names the fields";
            SettingError::require(self.prompt.is_none(), "prompt", unused, "given")?;
        }
        let is_read = self.rows != Rows::Windows || self.prompt.is_none();
        SettingError::require(is_read, "prompt", "left out where `rows` are windows of one text", "given")
    }

    fn check_data(&self, data: &DataConfig) -> Result<(), SettingError> {
        match self.rows {
            Rows::Windows => Self::check_windows(data),
            Rows::Samples | Rows::Packed => self.check_samples(data),
        }
    }

    fn texts<'r>(&self, record: &'r Record) -> Result<Vec<&'r str>, DataError> {
        if self.chat.is_some() {
            return Ok(chat::texts(record));
        }
        self.prompt.iter().chain([&self.text]).map(|field| record.text(field)).collect()
    }

    fn load(&self, loading: &Loading<'_>) -> Result<Loaded, LoadError> {
        match (self.rows, &loading.config().path) {
            (Rows::Windows, Some(paths)) => loading.windows(paths, self.documents()),
            _ => self.samples(loading),
        }
    }

    /// A conversation is one text, as the template writes it.
    fn measured_text(&self, record: &Record, tokenizer: &Tokenizer) -> Result<String, DataError> {
        match &self.chat {
            Some(chat) => chat.written(record, tokenizer),
            None => Ok(self.texts(record)?.concat()),
        }
    }

    /// The last token is only a label.
    fn unread(&self) -> usize {
        1
    }

    /// Conversations, if the records are some; otherwise windows of one long text.
    fn suggest(&self, examples: &Examples) -> Result<Suggestion, String> {
        let chat = examples.records.first().and_then(|record| ChatFormat::of(record).ok());
        if let Some(chat) = chat.filter(|_| !examples.is_plain_text) {
            return chat::suggest(&chat, examples);
        }
        let suggestion = Suggestion::default().data("block", examples.block());
        if examples.is_plain_text || examples.records.is_empty() {
            return Ok(suggestion.found("one long text, read in windows"));
        }
        let Some(field) = examples.text(&[]) else {
            return Err(examples.lack("each record needs a text, or a conversation (`messages`)"));
        };
        let found = format!("the texts in `{field}` are read as one long text, in windows");
        Ok(suggestion.field("text", &field, "text").special("(eos: \"</s>\")").found(found))
    }
}

impl Asks for CausalLmTask {
    /// A record's prompt, with its text as the expected continuation; without a prompt field, its text.
    fn question(&self, record: &Record) -> Result<(Question, Option<Value>), DataError> {
        let text = |field: &str| record.text(field).map(str::to_owned);
        Ok(match &self.prompt {
            Some(prompt) => (Question::Text(text(prompt)?), record_json(record, &self.text)),
            None => (Question::Text(text(&self.text)?), None),
        })
    }

    fn asked(&self, record: &Record, tokenizer: &Tokenizer) -> Result<(Question, Option<Value>), DataError> {
        match &self.chat {
            Some(chat) => chat.question(record, tokenizer),
            None => self.question(record),
        }
    }

    fn typed(&self, line: &str) -> Vec<(String, Field)> {
        match &self.chat {
            Some(_) => chat::typed(line),
            None => vec![(self.prompt.as_ref().unwrap_or(&self.text).clone(), Field::Text(line.into()))],
        }
    }

    fn prepare(&self, tokenizer: Tokenizer) -> Result<Tokenizer, DataError> {
        match &self.chat {
            Some(chat) => chat.prepare(tokenizer),
            None => Ok(tokenizer),
        }
    }

    fn writing(&self) -> Option<Writing> {
        Some(if self.chat.is_some() { Writing::Answer } else { Writing::Continuation })
    }
}
