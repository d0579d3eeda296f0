//! Renders conversations, as transformers' `apply_chat_template`.

use std::ops::Range;
use std::sync::Arc;

use minijinja::{Environment, Error, ErrorKind, Value as Jinja};

use super::conversation::jinja;
use super::environment::environment;
use super::rendering::{LONGEST, Rendering};
use super::{Conversation, bounds, generation, python, source};
use crate::{ChatError, DataError, Fingerprint};

/// A chat template, which writes a conversation as one text.
///
/// The text equals that of transformers' `apply_chat_template`, character by character, for the same template,
/// conversation and special tokens. A template sees `messages`, `tools`, `documents`, `add_generation_prompt` and the
/// tokenizer's special tokens by their roles, such as `bos_token`; it can call `raise_exception`, `strftime_now`,
/// `tojson` as transformers does, and the methods of Python's texts and maps.
///
/// A template comes with a downloaded model, so it is bounded: one whose source is nested too deep, that makes too much
/// text or too deep a value, or that takes very long, as with loops within loops, is an error. The bounds grow with the
/// conversation.
///
/// # Example
///
/// ```
/// use firebrick_datasets::{ChatTemplate, Conversation, Message};
///
/// let template = ChatTemplate::new("ours", "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}\n{% endfor %}")?
///     .with_token("eos_token", "</s>");
/// let messages = vec![Message::new("user", "Hi."), Message::new("assistant", "Hello.")];
/// let chat = template.render(&Conversation { messages, ..Default::default() }, false)?;
/// assert_eq!(chat.text, "user: Hi.</s>\nassistant: Hello.</s>\n");
/// # Ok::<(), firebrick_datasets::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    name: Arc<str>,
    environment: Arc<Environment<'static>>,
    /// The texts of special tokens, by their names in a template.
    tokens: Vec<(String, String)>,
    /// Whether there is another template for conversations with tools.
    has_tools: bool,
    /// Whether the template marks what the assistant writes.
    marks: bool,
    /// The names and hashes of the sources.
    sources: Vec<(&'static str, Fingerprint)>,
    /// Whether a source calls `strftime_now`.
    tells_time: bool,
}

/// A conversation as a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedChat {
    /// The text, with all of its special tokens.
    pub text: String,
    /// The bytes that the assistant wrote, if the template marks them with `{% generation %}`; otherwise empty.
    pub generated: Vec<Range<usize>>,
}

/// The name of the template for all conversations.
const DEFAULT: &str = "default";

/// The name of the template for conversations with tools, in transformers too.
const TOOL_USE: &str = "tool_use";

impl ChatTemplate {
    /// Compiles a template. `name` is what errors call it, such as its file.
    ///
    /// # Errors
    ///
    /// [`ChatError::Syntax`] if it is not valid Jinja.
    pub fn new(name: impl Into<Arc<str>>, source: &str) -> Result<Self, DataError> {
        let name = name.into();
        let environment = environment().map_err(|error| ChatError::Syntax {
            name: name.to_string(),
            line: None,
            reason: error.to_string(),
        })?;
        let mut template = Self {
            name,
            environment: Arc::new(environment),
            tokens: Vec::new(),
            has_tools: false,
            marks: false,
            sources: Vec::new(),
            tells_time: false,
        };
        template.marks = template.add(DEFAULT, source)?;
        Ok(template)
    }

    /// Uses another template for conversations with tools.
    ///
    /// # Errors
    ///
    /// [`ChatError::Syntax`] if it is not valid Jinja.
    pub fn with_tools(mut self, source: &str) -> Result<Self, DataError> {
        self.add(TOOL_USE, source)?;
        self.has_tools = true;
        Ok(self)
    }

    /// Sets the text of a special token, by its name in a template, such as `bos_token`.
    pub fn with_token(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.tokens.push((name.into(), text.into()));
        self
    }

    /// Compiles a template, and returns whether it marks what the assistant writes.
    fn add(&mut self, name: &'static str, source: &str) -> Result<bool, DataError> {
        self.sources.push((name, Fingerprint::of(source)));
        self.tells_time |= source.contains("strftime_now");
        let invalid = |(line, reason)| ChatError::Syntax { name: self.name.to_string(), line, reason };
        let prepared = source::prepared(source).map_err(|fault| invalid((fault.line, fault.reason)))?;
        let added = Arc::make_mut(&mut self.environment).add_template_owned(name, prepared.source);
        added.map_err(|error| invalid(told(&error)))?;
        Ok(prepared.marks)
    }

    /// Returns a hash of everything that rendered texts depend on besides the conversation. `None` if a template writes
    /// the time.
    pub(crate) fn settings(&self) -> Option<Fingerprint> {
        let Self { name: _, environment: _, tokens, has_tools, marks: _, sources, tells_time } = self;
        if *tells_time { None } else { Fingerprint::of_settings(&(tokens, has_tools, sources)) }
    }

    /// Returns the text of a special token, by its name in a template.
    pub(super) fn token(&self, name: &str) -> Option<&str> {
        self.tokens.iter().rev().find(|(known, _)| known == name).map(|(_, text)| &**text)
    }

    /// Returns what errors call the template.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Renders a conversation. With `prompt`, the beginning of an answer of the assistant follows, if the template
    /// has one (`add_generation_prompt`).
    ///
    /// # Errors
    ///
    /// [`ChatError::Rendering`] if the template raises an exception, fails, or exceeds a bound.
    pub fn render(&self, conversation: &Conversation, prompt: bool) -> Result<RenderedChat, DataError> {
        let failed = |error: Error| {
            let (line, reason) = told(&error);
            DataError::Chat(ChatError::Rendering { name: self.name.to_string(), line, reason })
        };
        let list = |values: &Option<Vec<_>>| match values {
            Some(values) => values.iter().map(jinja).collect(),
            None => Jinja::from(()),
        };
        let messages: Jinja = conversation.messages.iter().map(|message| message.jinja()).collect();
        let (tools, documents) = (list(&conversation.tools), list(&conversation.documents));
        let name = if self.has_tools && conversation.tools.is_some() { TOOL_USE } else { DEFAULT };
        let mut texts = String::new();
        let written =
            [&messages, &tools, &documents].into_iter().try_for_each(|value| python::text(value, &mut texts));
        if written.is_err() {
            let reason = format!("its values are nested more than {} deep", bounds::MOST_DEPTH);
            return Err(ChatError::Rendering { name: self.name.to_string(), line: None, reason }.into());
        }
        // A text in a list is written with escapes for what is no character.
        let escaped = |mark: char| format!("\\u{:04x}", u32::from(mark));
        let marks = generation::unused(|mark| texts.contains(mark) || texts.contains(&escaped(mark)));
        let tokens = self.tokens.iter().map(|(name, text)| (name.clone(), Jinja::from(text.as_str())));
        let mut values: Vec<(String, Jinja)> = tokens.collect();
        values.extend([
            ("messages".to_owned(), messages),
            ("tools".to_owned(), tools),
            ("documents".to_owned(), documents),
            ("add_generation_prompt".to_owned(), prompt.into()),
        ]);
        if let Some(marks) = marks {
            values.push((generation::MARKS.to_owned(), String::from_iter(marks).into()));
        } else if self.marks {
            let reason =
                "it holds all 32 of the noncharacters from U+FDD0, which no text should hold".to_owned();
            return Err(ChatError::Rendering { name: self.name.to_string(), line: None, reason }.into());
        }
        let environment = self.environment.clone();
        let rendering = Rendering { environment, name, values, size: texts.len() };
        let text = rendering.within(LONGEST).map_err(failed)?;
        Ok(match marks {
            Some(marks) => {
                let (text, generated) = generation::unmarked(&text, marks);
                RenderedChat { text, generated }
            }
            None => RenderedChat { text, generated: Vec::new() },
        })
    }

    /// Returns whether the template marks what the assistant writes, with `{% generation %}`.
    pub fn marks_answers(&self) -> bool {
        self.marks
    }
}

/// Returns the line of an error, and what went wrong.
fn told(error: &Error) -> (Option<usize>, String) {
    let reason = match (error.detail(), error.kind()) {
        (Some(detail), _) => detail.to_owned(),
        (None, ErrorKind::OutOfFuel) => {
            "it takes more steps, or makes more text, than a conversation needs (out of fuel)".to_owned()
        }
        (None, kind) => kind.to_string(),
    };
    (error.line(), reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Message;

    fn render(source: &str, messages: &[(&str, &str)]) -> Result<RenderedChat, String> {
        let template = ChatTemplate::new("ours", source).map_err(|error| error.to_string())?;
        let messages = messages.iter().map(|&(role, content)| Message::new(role, content)).collect();
        let conversation = Conversation { messages, ..Conversation::default() };
        template.render(&conversation, false).map_err(|error| error.to_string())
    }

    #[test]
    fn marks_are_exact_with_any_content() {
        let source = "{%- for m in messages %}\n  {%- if m.role == 'assistant' %}\n    {%- generation %}\n\
            {{ m.content }}{{ loop.last }}{% set seen = 1 %}\n    {%- endgeneration %}\n  {%- else %}\n[{{ m.content }}]{% endif %}\n{% endfor %}{{ seen }}";
        let odd = "a\u{FDD0}b\u{FDD1}";
        let chat =
            render(source, &[("user", odd), ("assistant", "é{% generation %}"), ("assistant", odd)]).unwrap();
        assert_eq!(chat.text, format!("[{odd}]é{{% generation %}}False{odd}True"));
        let parts: Vec<_> = chat.generated.iter().map(|part| &chat.text[part.clone()]).collect();
        assert_eq!(parts, ["é{% generation %}False".to_owned(), format!("{odd}True")]);
        let all: String = ('\u{FDD0}'..='\u{FDEF}').collect();
        assert!(render(source, &[("user", &all)]).unwrap_err().contains("noncharacters"));
        assert_eq!(render("{{ messages[0].content }}", &[("user", &all)]).unwrap().text, all);
    }

    #[test]
    fn failures_say_the_line_and_the_reason() {
        let error = render("a\n{% for m in %}", &[]).unwrap_err();
        assert!(error.starts_with("ours, line 2: not a valid Jinja template: "), "{error}");
        let error = render("a\n\n{{ raise_exception('roles must alternate') }}", &[]).unwrap_err();
        assert!(
            error.starts_with("ours, line 3: the template refuses the conversation: roles must alternate; "),
            "{error}"
        );
        let forever = "{% for a in range(10000) %}{% for b in range(10000) %}{% for c in range(10000) %}{{ a }}\
            {% endfor %}{% endfor %}{% endfor %}";
        // On a slow machine, the time ends before the steps do.
        let error = render(forever, &[]).unwrap_err();
        assert!(error.contains("fuel") || error.contains("it takes longer than 10 s"), "{error}");
    }

    #[test]
    fn times_are_written() {
        let year = render("{{ strftime_now('%Y') }}", &[]).unwrap().text;
        assert!(year.len() == 4 && year.starts_with("2"), "{year}");
        assert!(render("{{ strftime_now('%Q%%%!') }}", &[]).unwrap_err().contains("not a format of times"));
    }

    #[test]
    fn conversations_with_tools_have_their_template() {
        let template =
            ChatTemplate::new("ours", "plain").unwrap().with_tools("{{ tools | length }} tools").unwrap();
        let render =
            |tools| template.render(&Conversation { tools, ..Conversation::default() }, false).unwrap().text;
        assert_eq!(render(None), "plain");
        assert_eq!(render(Some(vec![crate::Value::Null])), "1 tools");
    }
}

#[cfg(test)]
#[path = "hostile_tests.rs"]
mod hostile_tests;
