//! The chat template of a tokenizer.

use super::Tokenizer;
use super::chat_templates::ChatTemplates;
use crate::{ChatError, ChatTemplate, DataError};

impl Tokenizer {
    /// Sets the chat template, in place of the one that was read. [`save`](Self::save) writes it beside the
    /// `tokenizer.json`.
    ///
    /// # Errors
    ///
    /// [`ChatError::Syntax`](crate::ChatError::Syntax) if it is not valid Jinja.
    pub fn with_chat_template(mut self, name: &str, source: &str) -> Result<Self, DataError> {
        self.config.chat = ChatTemplates::one(name, source);
        self.config.chat.compile()?;
        Ok(self)
    }

    /// Returns the chat template, with the tokenizer's special tokens.
    ///
    /// It is read from `chat_template.jinja` beside the `tokenizer.json` and, for conversations with tools,
    /// `additional_chat_templates/tool_use.jinja`; otherwise from `chat_template` in `tokenizer_config.json`, a template
    /// or a list of named ones; otherwise from `chat_template.json`.
    ///
    /// # Errors
    ///
    /// [`ChatError::NoTemplate`](crate::ChatError::NoTemplate) if there is none, and
    /// [`ChatError::Syntax`](crate::ChatError::Syntax) if it is not valid Jinja.
    pub fn chat_template(&self) -> Result<ChatTemplate, DataError> {
        let template = self.config.chat.compile()?.ok_or(ChatError::NoTemplate)?;
        let roles = self.config.names.roles().into_iter();
        let tokens = roles.filter_map(|(role, name)| Some((format!("{role}_token"), name.clone()?)));
        Ok(tokens.fold(template, |template, (role, name)| template.with_token(role, name)))
    }

    /// Returns the token that ends an answer in the chat template: the first special token after its content. `None`
    /// without a valid template, or if the template writes no special token there.
    pub fn end_of_turn(&self) -> Option<u32> {
        let end = self.chat_template().ok()?.end_of_answer()?;
        self.encode(&end).ok()?.into_iter().find(|id| self.special().all.contains(id))
    }
}
