//! Conversations as text: chat templates, and which parts of the text the assistant wrote.
//!
//! ```text
//! conversation  messages, tools and documents
//! └── format       records as conversations: messages, ShareGPT, Alpaca, prompt and completion
//! template      renders conversations, as transformers' `apply_chat_template`
//! ├── source       checks the source, and rewrites it for the engine
//! │   ├── expression   the operators of a tag's expression
//! │   └── tokens       a tag's text as tokens
//! ├── generation   `{% generation %}` blocks, which mark what the assistant wrote
//! ├── environment  what a template can call
//! │   ├── filters    filters and tests
//! │   │   ├── html       filters that write and read HTML
//! │   │   │   └── entities   entities of HTML as characters
//! │   │   ├── wordwrap   the filter that wraps lines
//! │   │   └── arguments  arguments by place or by name
//! │   ├── methods    methods of texts, lists and maps
//! │   ├── operators  `~` and `%`
//! │   └── bounds     bounds of what a template stores and writes
//! ├── rendering    runs a template within bounds of steps and time
//! └── python       values as Python writes them
//! answers       finds the assistant's parts of a rendered conversation
//! ```

mod answers;
mod arguments;
mod bounds;
mod conversation;
mod entities;
mod environment;
mod expression;
mod filters;
mod format;
mod generation;
mod html;
mod methods;
mod operators;
mod python;
mod rendering;
mod source;
mod template;
mod tokens;
mod wordwrap;

pub use conversation::{Conversation, Message};
pub use format::ChatFormat;
pub use template::{ChatTemplate, RenderedChat};
