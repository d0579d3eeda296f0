//! Messages, tools and documents, and records as conversations.

use minijinja::Value as Jinja;
use serde::{Deserialize, Serialize};

use crate::strict_json::Strict;
use crate::{DataError, Record, Value};

/// A conversation: its messages, and the tools and documents that the model may use.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Conversation {
    /// The messages, in order.
    pub messages: Vec<Message>,
    /// The tools, each a JSON schema of a function.
    pub tools: Option<Vec<Value>>,
    /// The documents, each with a title and a text.
    pub documents: Option<Vec<Value>>,
}

/// A message: its named values, in order. Templates read `role` and `content`, and some `tool_calls`, `name` or
/// `reasoning_content`.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    fields: Vec<(String, Value)>,
}

impl Message {
    /// Creates a message of `role`: `system`, `user`, `assistant` or `tool`.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        let fields = [("role", role.into()), ("content", content.into())];
        Self { fields: fields.map(|(name, text)| (name.to_owned(), Value::Text(text))).to_vec() }
    }

    /// Creates a message of named values. Null values are left out, as in transformers: many templates fail on them
    /// and handle a missing name.
    pub(super) fn of(fields: &[(String, Value)]) -> Self {
        let given = fields.iter().filter(|(_, value)| *value != Value::Null);
        Self { fields: given.cloned().collect() }
    }

    /// Returns a named value.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.fields.iter().find(|(field, _)| field == name).map(|(_, value)| value)
    }

    fn text(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// Returns who wrote the message.
    pub fn role(&self) -> &str {
        self.text("role").unwrap_or_default()
    }

    /// Returns whether the assistant wrote the message. Gemma calls it `model`.
    pub fn is_answer(&self) -> bool {
        matches!(self.role(), "assistant" | "model")
    }

    /// Returns the content, if it is a text.
    pub fn content(&self) -> Option<&str> {
        self.text("content")
    }

    /// Returns the message with its content as a list of one part, if it is a text: templates of models that also read
    /// images loop over such lists.
    pub(super) fn in_parts(&self) -> Self {
        let part = |text: &Value| {
            let kind = ("type".to_owned(), Value::Text("text".to_owned()));
            Value::List(vec![Value::Map(vec![kind, ("text".to_owned(), text.clone())])])
        };
        let fields = self.fields.iter().map(|(name, value)| match value {
            Value::Text(_) if name == "content" => (name.clone(), part(value)),
            _ => (name.clone(), value.clone()),
        });
        Self { fields: fields.collect() }
    }

    /// Returns the message for a template, with the names that transformers gives to its reasoning.
    pub(super) fn jinja(&self) -> Jinja {
        const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
        let mut fields: Vec<_> =
            self.fields.iter().map(|(name, value)| (name.clone(), jinja(value))).collect();
        if let Some(reasoning) = REASONING.iter().find_map(|name| self.get(name)).map(jinja) {
            if self.get("thinking").is_none() {
                fields.insert(0, ("thinking".to_owned(), reasoning.clone()));
            }
            match fields.iter_mut().find(|(name, _)| name == "reasoning_content") {
                Some((_, value)) => *value = reasoning,
                None => fields.push(("reasoning_content".to_owned(), reasoning)),
            }
        }
        Jinja::from_pairs(fields)
    }
}

/// Returns a value for a template.
pub(super) fn jinja(value: &Value) -> Jinja {
    match value {
        Value::Null => Jinja::from(()),
        Value::Bool(value) => Jinja::from(*value),
        Value::Integer(value) => Jinja::from(*value),
        Value::Float(value) => Jinja::from(*value),
        Value::Text(text) => Jinja::from(text.as_str()),
        Value::List(values) => values.iter().map(jinja).collect(),
        Value::Map(fields) => {
            Jinja::from_pairs(fields.iter().map(|(name, value)| (name.clone(), jinja(value))))
        }
    }
}

/// How a record holds a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum ChatFormat {
    /// A list of messages with `role` and `content`, and perhaps `tool_calls`; and perhaps a field `tools`, a list or
    /// its JSON.
    Messages {
        /// The field of the list.
        field: String,
    },
    /// A list of messages with `from` (`system`, `human`, `gpt`, `tool` and their usual other names) and `value`, and
    /// perhaps fields `system` and `tools`.
    ShareGpt {
        /// The field of the list.
        field: String,
    },
    /// The fields `instruction`, `input`, which may be empty or missing, and `output`, and perhaps `system`. The input
    /// follows the instruction on a new line.
    Alpaca,
    /// A prompt and a completion: texts, or lists of messages.
    PromptCompletion {
        /// The field of the prompt.
        prompt: String,
        /// The field of the completion.
        completion: String,
    },
}

impl ChatFormat {
    /// Recognises the format of a record by its fields: `messages`; `conversations` or `conversation`, whose first
    /// message has `from` or `role`; `instruction` and `output`; or `prompt` and `completion`.
    ///
    /// # Errors
    ///
    /// [`ReadError::Record`](crate::ReadError::Record) if it has none of them.
    pub fn of(record: &Record) -> Result<Self, DataError> {
        let has = |field: &str| record.get(field).is_some();
        if has("messages") {
            return Ok(Self::Messages { field: "messages".to_owned() });
        }
        for field in ["conversations", "conversation"] {
            if let Some(Value::List(messages)) = record.get(field) {
                let is_from = matches!(messages.first(), Some(Value::Map(fields)) if fields.iter().any(|(name, _)| name == "from"));
                let field = field.to_owned();
                return Ok(if is_from { Self::ShareGpt { field } } else { Self::Messages { field } });
            }
        }
        if has("instruction") && has("output") {
            return Ok(Self::Alpaca);
        }
        if has("prompt") && has("completion") {
            let [prompt, completion] = ["prompt", "completion"].map(str::to_owned);
            return Ok(Self::PromptCompletion { prompt, completion });
        }
        let expected = "a conversation: `messages`, `conversations`, `instruction` and `output`, or `prompt` and \
                        `completion` (or name the fields: `records: Messages(field: ..)`)";
        Err(record.expected("messages", expected))
    }

    /// Returns the conversation of a record.
    ///
    /// # Errors
    ///
    /// [`ReadError::Record`](crate::ReadError::Record) if a field is missing or of another type.
    pub fn conversation(&self, record: &Record) -> Result<Conversation, DataError> {
        let mut messages = Vec::new();
        match self {
            Self::Messages { field } => messages.extend(of_roles(record, field)?),
            Self::ShareGpt { field } => {
                messages.extend(system(record)?);
                messages.extend(of_share_gpt(record, field)?);
            }
            Self::Alpaca => {
                messages.extend(system(record)?);
                let mut user = record.text("instruction")?.to_owned();
                if !matches!(record.get("input"), None | Some(Value::Null)) {
                    let input = record.text("input")?;
                    if !input.is_empty() {
                        user = format!("{user}\n{input}");
                    }
                }
                messages.push(Message::new("user", user));
                messages.push(Message::new("assistant", record.text("output")?));
            }
            Self::PromptCompletion { prompt, completion } => {
                for (field, role) in [(prompt, "user"), (completion, "assistant")] {
                    match record.get(field) {
                        Some(Value::List(_)) => messages.extend(of_roles(record, field)?),
                        Some(Value::Text(text)) => messages.push(Message::new(role, text.as_str())),
                        _ => return Err(record.expected(field, "a text, or a list of messages")),
                    }
                }
            }
        }
        let (tools, documents) = Self::tools(record)?;
        Ok(Conversation { messages, tools, documents })
    }

    /// Returns the messages of a field, a list of messages with `role` and `content`.
    pub(crate) fn messages(record: &Record, field: &str) -> Result<Vec<Message>, DataError> {
        of_roles(record, field)
    }

    /// Returns the tools and the documents of a record.
    pub(crate) fn tools(record: &Record) -> Result<(Values, Values), DataError> {
        Ok((list(record, "tools")?, list(record, "documents")?))
    }
}

/// A list that a record may lack.
type Values = Option<Vec<Value>>;

fn items<'r>(record: &'r Record, field: &str) -> Result<Vec<&'r [(String, Value)]>, DataError> {
    let Some(Value::List(values)) = record.get(field) else {
        return Err(record.expected(field, "a list of messages"));
    };
    if values.is_empty() {
        return Err(record.mismatch(field, "at least one message", "none"));
    }
    let message = |(at, value): (usize, &'r Value)| match value {
        Value::Map(fields) => Ok(fields.as_slice()),
        other => Err(record.mismatch(&format!("{field}[{at}]"), "a message", other.to_string())),
    };
    values.iter().enumerate().map(message).collect()
}

/// Returns the text of a message.
fn text<'r>(
    record: &Record,
    (field, at): (&str, usize),
    message: &'r [(String, Value)],
    name: &str,
) -> Result<&'r str, DataError> {
    let value = message.iter().find(|(of, _)| of == name).map(|(_, value)| value);
    match value {
        Some(Value::Text(text)) => Ok(text),
        other => {
            let found = other.map_or_else(|| "no such field".to_owned(), Value::to_string);
            Err(record.mismatch(&format!("{field}[{at}].{name}"), "a text", found))
        }
    }
}

fn of_roles(record: &Record, field: &str) -> Result<Vec<Message>, DataError> {
    let message = |(at, fields): (usize, &[(String, Value)])| {
        text(record, (field, at), fields, "role")?;
        let message = Message::of(fields);
        let found = match message.get("content") {
            Some(Value::Text(_) | Value::List(_)) => return Ok(message),
            None if message.get("tool_calls").is_some() => return Ok(message),
            None => "none, and no `tool_calls`".to_owned(),
            Some(other) => other.to_string(),
        };
        Err(record.mismatch(&format!("{field}[{at}].content"), "a text, or a list of parts", found))
    };
    items(record, field)?.into_iter().enumerate().map(message).collect()
}

fn of_share_gpt(record: &Record, field: &str) -> Result<Vec<Message>, DataError> {
    let message = |(at, fields): (usize, &[(String, Value)])| {
        let from = text(record, (field, at), fields, "from")?;
        let role = match from {
            "human" | "user" => "user",
            "gpt" | "assistant" | "model" | "chatgpt" | "bing" | "bard" => "assistant",
            "system" => "system",
            "tool" | "observation" | "function_response" => "tool",
            other => {
                let expected = "\"human\", \"gpt\", \"system\" or \"tool\"";
                return Err(record.mismatch(&format!("{field}[{at}].from"), expected, format!("{other:?}")));
            }
        };
        Ok(Message::new(role, text(record, (field, at), fields, "value")?))
    };
    items(record, field)?.into_iter().enumerate().map(message).collect()
}

/// Returns the message of a field `system`, if there is one.
fn system(record: &Record) -> Result<Option<Message>, DataError> {
    match record.get("system") {
        None | Some(Value::Null) => Ok(None),
        Some(_) => {
            let text = record.text("system")?;
            Ok((!text.is_empty()).then(|| Message::new("system", text)))
        }
    }
}

/// Returns a list, which may be written as JSON, since the columns of tables hold one type.
fn list(record: &Record, field: &str) -> Result<Values, DataError> {
    let expected = "a list, or the JSON of one";
    match record.get(field) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::List(values)) => Ok((!values.is_empty()).then(|| values.clone())),
        Some(Value::Text(text)) if text.trim().is_empty() => Ok(None),
        Some(Value::Text(text)) => match serde_json::from_str(text) {
            Ok(Strict(Value::List(values))) => Ok((!values.is_empty()).then_some(values)),
            Ok(Strict(other)) => Err(record.mismatch(field, expected, other.to_string())),
            Err(error) => Err(record.mismatch(field, expected, error.to_string())),
        },
        Some(_) => Err(record.expected(field, expected)),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::{JsonlReader, Reader};

    fn read(line: &str) -> Result<Conversation, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), line).unwrap();
        let record = JsonlReader::new(Path::new(file.path())).open(0).unwrap().next().unwrap().unwrap();
        let conversation = ChatFormat::of(&record).and_then(|format| format.conversation(&record));
        conversation.map_err(|error| error.to_string())
    }

    fn brief(line: &str) -> Vec<String> {
        let messages = read(line).unwrap().messages;
        messages.iter().map(|one| format!("{}: {}", one.role(), one.content().unwrap_or("-"))).collect()
    }

    #[test]
    fn each_format_is_recognised() {
        let expected = ["system: S", "user: Q", "assistant: A"];
        for line in [
            r#"{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]}"#,
            r#"{"conversations": [{"from": "system", "value": "S"}, {"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]}"#,
            r#"{"conversation": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}], "system": "S"}"#,
            r#"{"conversations": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]}"#,
            r#"{"instruction": "Q", "input": "", "output": "A", "system": "S"}"#,
            r#"{"prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}], "completion": "A"}"#,
        ] {
            assert_eq!(brief(line), expected, "{line}");
        }
        assert_eq!(
            brief(r#"{"instruction": "Q", "input": "I", "output": "A"}"#),
            ["user: Q\nI", "assistant: A"]
        );
        assert_eq!(brief(r#"{"prompt": "Q", "completion": "A"}"#), ["user: Q", "assistant: A"]);
    }

    #[test]
    fn tools_are_lists_or_their_json() {
        let tools = |tools: &str| {
            read(&format!(
                r#"{{"messages": [{{"role": "assistant", "content": null, "tool_calls": []}}], "tools": {tools}}}"#
            ))
        };
        let list = Some(vec![Value::Map(vec![("b".into(), Value::Integer(1)), ("a".into(), Value::Null)])]);
        assert_eq!(tools(r#"[{"b": 1, "a": null}]"#).unwrap().tools, list);
        assert_eq!(tools(r#""[{\"b\": 1, \"a\": null}]""#).unwrap().tools, list);
        assert_eq!(tools("\"\"").unwrap().tools, None);
        assert!(
            tools("3")
                .unwrap_err()
                .contains(":1, field `tools`: expected a list, or the JSON of one, found the number 3")
        );
        // Null values are left out, as in transformers.
        assert_eq!(tools("null").unwrap().messages[0].get("content"), None);
    }

    #[test]
    fn faults_are_named_with_their_place() {
        for (line, expected) in [
            (r#"{"text": "a"}"#, ":1, field `messages`: expected a conversation"),
            (r#"{"messages": []}"#, "field `messages`: expected at least one message, found none"),
            (r#"{"messages": ["a"]}"#, "field `messages[0]`: expected a message, found the text \"a\""),
            (
                r#"{"messages": [{"content": "a"}]}"#,
                "field `messages[0].role`: expected a text, found no such field",
            ),
            (
                r#"{"messages": [{"role": "user", "content": 3}]}"#,
                "field `messages[0].content`: expected a text, or a list of parts, found the number 3",
            ),
            (
                r#"{"conversations": [{"from": "alien", "value": "a"}]}"#,
                "field `conversations[0].from`: expected \"human\"",
            ),
        ] {
            let error = read(line).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
