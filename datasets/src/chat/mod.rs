//! Conversations as text: chat templates, and which parts of the text the assistant wrote.
//!
//! ```text
//! conversation  messages, tools and documents
//! └── format       records as conversations: messages, ShareGPT, Alpaca, prompt and completion
//! template      renders conversations, as transformers' `apply_chat_template`
//! ├── environment  what a template can call
//! ├── generation   `{% generation %}` blocks, which mark what the assistant wrote
//! └── python       values as Python writes them
//! answers       finds the assistant's parts of a rendered conversation
//! ```

mod answers;
mod conversation;
mod environment;
mod format;
mod generation;
mod python;
mod template;

pub use conversation::{Conversation, Message};
pub use format::ChatFormat;
pub use template::{ChatTemplate, RenderedChat};
