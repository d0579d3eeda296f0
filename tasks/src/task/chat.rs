//! Conversations as the data of a causal language model.

use std::fs;
use std::path::PathBuf;

use firebrick_datasets::collators::{Chat, Learned};
use firebrick_datasets::{
    ChatFormat, ChatTemplate, Conversation, DataError, Message, Record, Tokenizer, Value as Field,
};
use firebrick_models::inference::Question;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::suggestion::OF_MESSAGE;
use super::{Examples, Suggestion};

/// `chat: (..)` of [`CausalLmTask`](super::CausalLmTask): records are conversations, of which the answers are learned.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChatConfig {
    /// The template. Default: the tokenizer's.
    #[serde(default)]
    pub template: Option<TemplateConfig>,
    /// How a record holds a conversation. Default: recognised by each record's fields.
    #[serde(default)]
    pub records: Option<ChatFormat>,
    /// The tokens that count in the loss. Default: those of the answers.
    #[serde(default)]
    pub learn: Learned,
}

/// The name of standard input in the places of records.
pub const STANDARD_INPUT: &str = "standard input";

/// A chat template.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum TemplateConfig {
    /// `<|im_start|>ROLE`, a new line, the content, and `<|im_end|>`, which the tokenizer must have as special tokens.
    ChatMl,
    /// A Jinja file.
    File(PathBuf),
}

/// The special tokens of a new tokenizer for ChatML: `data.special` in RON.
pub(super) const CHATML_TOKENS: &str =
    "(pad: \"<|endoftext|>\", eos: \"<|im_end|>\", additional: [\"<|im_start|>\"])";

/// ChatML, with the answers marked.
const CHATML: &str = "\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.role == 'assistant' %}
        {%- generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}
    {%- else %}
        {{- message.content + '<|im_end|>' }}
    {%- endif %}
    {{- '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
{%- endif %}
";

impl TemplateConfig {
    /// Gives a tokenizer this template.
    ///
    /// # Errors
    ///
    /// The template's file cannot be read, or is not valid Jinja; or the tokenizer lacks the special tokens of `ChatMl`.
    pub(super) fn prepare(&self, tokenizer: Tokenizer) -> Result<Tokenizer, DataError> {
        match self {
            Self::ChatMl => {
                ["<|im_start|>", "<|im_end|>"].iter().try_for_each(|token| tokenizer.id(token).map(drop))?;
                tokenizer.with_chat_template("the template ChatMl", CHATML)
            }
            Self::File(path) => {
                let source = fs::read_to_string(path)
                    .map_err(|source| DataError::Io { path: path.clone(), source })?;
                tokenizer.with_chat_template(&path.display().to_string(), &source)
            }
        }
    }
}

impl ChatConfig {
    /// Gives a tokenizer the template of the run, if it names one.
    ///
    /// # Errors
    ///
    /// Those of [`TemplateConfig::prepare`].
    pub(crate) fn prepare(&self, tokenizer: Tokenizer) -> Result<Tokenizer, DataError> {
        match &self.template {
            None => Ok(tokenizer),
            Some(template) => template.prepare(tokenizer),
        }
    }

    /// Returns what encodes the conversations.
    pub(super) fn encoder(&self, template: ChatTemplate) -> Chat {
        Chat::new(template).format(self.records.clone()).learned(self.learn)
    }

    fn conversation(&self, record: &Record) -> Result<Conversation, DataError> {
        match &self.records {
            Some(format) => format.conversation(record),
            None => ChatFormat::of(record)?.conversation(record),
        }
    }

    /// Returns the conversation of a record as the template writes it.
    pub(super) fn written(&self, record: &Record, tokenizer: &Tokenizer) -> Result<String, DataError> {
        Ok(tokenizer.chat_template()?.render(&self.conversation(record)?, false)?.text)
    }

    /// Returns the conversation before the last answer, with the beginning of an answer, and the last answer.
    pub(super) fn question(
        &self,
        record: &Record,
        tokenizer: &Tokenizer,
    ) -> Result<(Question, Option<Value>), DataError> {
        // A typed message is a conversation, whatever the format of the data.
        let mut chat = match record.place().file.as_os_str() == STANDARD_INPUT {
            true => ChatFormat::of(record)?.conversation(record)?,
            false => self.conversation(record)?,
        };
        let last = chat.messages.iter().rposition(Message::is_answer);
        let answer = last.and_then(|at| chat.messages[at].content()).map(|text| Value::from(text.trim()));
        chat.messages.truncate(last.unwrap_or(chat.messages.len()));
        let text = tokenizer.chat_template()?.render(&chat, true)?.text;
        Ok((Question::Text(text), answer))
    }
}

/// Returns the prompt of a chat model: a user's message as a conversation, with the beginning of an answer.
///
/// # Errors
///
/// The tokenizer has no chat template, or the template refuses the conversation.
pub fn chat_prompt(tokenizer: &Tokenizer, system: Option<&str>, prompt: &str) -> Result<String, DataError> {
    let system = system.map(|text| Message::new("system", text));
    let messages = system.into_iter().chain([Message::new("user", prompt)]).collect();
    let chat = Conversation { messages, ..Conversation::default() };
    Ok(tokenizer.chat_template()?.render(&chat, true)?.text)
}

/// Returns the field of a record whose conversation is a user's message.
pub(super) fn typed(line: &str) -> Vec<(String, Field)> {
    let text = |text: &str| Field::Text(text.into());
    let message = Field::Map(vec![("role".into(), text("user")), ("content".into(), text(line))]);
    vec![("messages".into(), Field::List(vec![message]))]
}

/// Suggests settings for conversations of this format.
///
/// # Errors
///
/// The tokenizer of the model's folder has no chat template, and the records are more than prompts and completions.
pub(super) fn suggest(format: &ChatFormat, examples: &Examples) -> Result<Suggestion, String> {
    let suggestion = Suggestion::default()
        .data("max_length", examples.length_of(|record| written(format, examples, record)));
    let is_answered = |record: &Record| {
        let chat = format.conversation(record);
        chat.is_ok_and(|chat| chat.messages.iter().any(|message| message.is_answer() && !is_empty(message)))
    };
    if !examples.records.iter().any(is_answered) {
        return Err(
            examples.lack("a conversation needs an answer to learn: a message of the role `assistant`")
        );
    }
    let found = match format {
        ChatFormat::Messages { field } | ChatFormat::ShareGpt { field } => {
            format!("conversations in `{field}`")
        }
        ChatFormat::Alpaca => "conversations of an `instruction` and an `output`".into(),
        ChatFormat::PromptCompletion { .. } => "conversations of a `prompt` and a `completion`".into(),
    };
    let suggestion = suggestion.set("rows", "Packed");
    let Some(tokenizer) = &examples.tokenizer else {
        return Ok(suggestion.set("chat", "(template: ChatMl)").special(CHATML_TOKENS).found(found));
    };
    if tokenizer.chat_template().is_ok() {
        return Ok(suggestion
            .set("chat", "()")
            .found(format!("{found}, in the template of the model's folder")));
    }
    match format {
        // Without a template, the completion follows the prompt as it is.
        ChatFormat::PromptCompletion { prompt, completion } => Ok(suggestion
            .set("prompt", format!("{prompt:?}"))
            .set("text", format!("{completion:?}"))
            .found("each completion follows its prompt; the model's folder has no chat template")),
        _ => Err(format!(
            "{found}, but the tokenizer of the model's folder has no chat template: take the folder of a model \
             that was trained on conversations (an \"instruct\" or \"chat\" model)"
        )),
    }
}

/// Returns the characters of a conversation with those of its template, which short conversations consist of for the most
/// part.
fn written(format: &ChatFormat, examples: &Examples, record: &Record) -> usize {
    let Ok(chat) = format.conversation(record) else { return 0 };
    let template = examples.tokenizer.as_ref().and_then(|tokenizer| tokenizer.chat_template().ok());
    if let Some(rendered) = template.and_then(|template| template.render(&chat, false).ok()) {
        return rendered.text.chars().count();
    }
    let of = |message: &Message| {
        let content = message.content().unwrap_or_default();
        message.role().chars().count() + content.chars().count() + OF_MESSAGE
    };
    chat.messages.iter().map(of).sum()
}

fn is_empty(message: &Message) -> bool {
    message.content().is_some_and(|content| content.trim().is_empty())
}

/// Returns the texts within a record's values, whichever fields hold them: those of a vocabulary.
pub(super) fn texts(record: &Record) -> Vec<&str> {
    texts_of(record, &record.names().collect::<Vec<_>>())
}

/// Returns the texts within some of a record's values.
pub(super) fn texts_of<'r>(record: &'r Record, fields: &[&str]) -> Vec<&'r str> {
    let mut texts = Vec::new();
    fields.iter().filter_map(|field| record.get(field)).for_each(|value| add(value, &mut texts));
    texts
}

fn add<'r>(value: &'r Field, texts: &mut Vec<&'r str>) {
    match value {
        Field::Text(text) => texts.push(text),
        Field::List(values) => values.iter().for_each(|value| add(value, texts)),
        Field::Map(fields) => fields.iter().for_each(|(_, value)| add(value, texts)),
        Field::Null | Field::Bool(_) | Field::Integer(_) | Field::Float(_) => {}
    }
}
