//! Conversations as text: chat templates, and which parts of the text the assistant wrote.
//!
//! ```text
//! conversation  messages, tools and documents
//! └── format       records as conversations: messages, ShareGPT, Alpaca, prompt and completion
//! template      renders conversations, as transformers' `apply_chat_template`
//! ├── source       checks the source, and rewrites it for the engine
//! ├── generation   `{% generation %}` blocks, which mark what the assistant wrote
//! ├── environment  what a template can call
//! │   ├── filters    filters and tests
//! │   ├── methods    methods of texts, lists and maps
//! │   ├── operators  `~` and `%`
//! │   └── bounds     bounds of what a template stores and writes
//! ├── rendering    runs a template within bounds of steps and time
//! └── python       values as Python writes them
//! answers       finds the assistant's parts of a rendered conversation
//! ```

mod answers;
mod bounds;
mod conversation;
mod environment;
mod filters;
mod format;
mod generation;
mod methods;
mod operators;
mod python;
mod rendering;
mod source;
mod template;

pub use conversation::{Conversation, Message};
pub use format::ChatFormat;
pub use template::{ChatTemplate, RenderedChat};
