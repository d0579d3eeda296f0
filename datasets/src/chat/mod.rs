//! Conversations as text: chat templates, and which parts of the text the assistant wrote.
//!
//! ```text
//! conversation  messages, tools and documents, and records as conversations: messages, ShareGPT, Alpaca, prompt and
//!               completion
//! template      renders conversations, as transformers' `apply_chat_template`
//! ├── source       checks the source, and rewrites it for the engine
//! │   └── expression   the operators of a tag's expression, and the filters that `~` and `%` become
//! ├── generation   `{% generation %}` blocks, which mark what the assistant wrote
//! ├── environment  what a template can call
//! │   ├── filters    filters and tests
//! │   │   ├── html       filters that write and read HTML, and its entities
//! │   │   └── wordwrap   the filter that wraps lines
//! │   ├── methods    methods of texts, lists and maps
//! │   └── bounds     bounds of what a template stores and writes
//! ├── rendering    runs a template within bounds of steps and time
//! └── python       values as Python writes them, and arguments by place or by name
//! answers       finds the assistant's parts of a rendered conversation
//! ```

mod answers;
mod bounds;
mod conversation;
mod environment;
mod expression;
mod filters;
mod generation;
mod html;
mod methods;
mod python;
mod rendering;
mod source;
mod template;
mod wordwrap;

pub use conversation::{ChatFormat, Conversation, Message};
pub use template::{ChatTemplate, RenderedChat};
