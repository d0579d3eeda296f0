//! The errors of chat templates.

/// An error of a chat template.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// There is no chat template.
    #[error(
        "the tokenizer has no chat template: neither `chat_template.jinja` nor `chat_template` in \
         tokenizer_config.json; name one (`chat: (template: ChatMl)` or `template: File(\"chat.jinja\")` in a run \
         file), or use the tokenizer of a model that was trained on conversations"
    )]
    NoTemplate,

    /// A chat template is not valid Jinja.
    #[error("{name}{}: not a valid Jinja template: {reason}; correct the template", at(*.line))]
    Syntax {
        /// What the template is, or its file.
        name: String,
        /// The line of the template, from 1.
        line: Option<usize>,
        /// What is wrong with it.
        reason: String,
    },

    /// A chat template cannot render a conversation.
    #[error(
        "{name}{}: the template refuses the conversation: {reason}; correct the conversation, or use another template",
        at(*.line)
    )]
    Rendering {
        /// What the template is, or its file.
        name: String,
        /// The line of the template, from 1.
        line: Option<usize>,
        /// The template's own message, or what failed.
        reason: String,
    },

    /// A chat template writes no message of a conversation.
    #[error(
        "{name}: the template writes the content of no message of the conversation; it must write `content` of each of \
         `messages`; correct the template, or use another one"
    )]
    NoMessages {
        /// What the template is, or its file.
        name: String,
    },

    /// A chat template writes no content that is a text.
    #[error(
        "{name}: the template leaves out each `content` that is a text, since it reads a list of parts; write \
         `[{{\"type\": \"text\", \"text\": \"..\"}}]` as `content`, or use a template for texts \
         (`chat: (template: ChatMl)` in a run file)"
    )]
    Parts {
        /// What the template is, or its file.
        name: String,
    },

    /// The assistant's part of a rendered conversation cannot be told from the rest.
    #[error(
        "message {message} of the conversation: {found}, so the tokens to learn are unknown; mark what the assistant \
         writes with {{% generation %}} and {{% endgeneration %}} in the template, or learn all tokens \
         (`learn: All`)"
    )]
    Unmarked {
        /// The assistant's message, from 1.
        message: usize,
        /// What the template did.
        found: String,
    },
}

fn at(line: Option<usize>) -> String {
    line.map_or_else(String::new, |line| format!(", line {line}"))
}
