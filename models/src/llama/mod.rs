//! Llama and related decoders.
//!
//! ```text
//! config.rs    config.json
//! ├── kind.rs     what distinguishes the models: numbers that only some have, and which blocks have a window
//! └── gemma.rs    the settings of a Gemma
//! family.rs    the entry of a run file, and predictions
//! decoder.rs   the model
//! └── block.rs    one of its blocks
//! keys.rs      the names of the parameters in files
//! ```

mod block;
mod config;
mod decoder;
mod family;
mod gemma;
mod keys;
mod kind;

pub use config::LlamaConfig;
pub use decoder::Llama;
pub use family::LlamaShape;
