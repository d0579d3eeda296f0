//! Messages, tools and documents.

use minijinja::Value as Jinja;

use crate::Value;

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
