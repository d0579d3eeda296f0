//! Llama, and decoders like it.
//!
//! ```text
//! config.rs    config.json
//! decoder.rs   the model
//! rope.rs      rotary position embedding
//! keys.rs      which tensor of a file is which parameter
//! ```

mod config;
mod decoder;
mod keys;
mod rope;

pub use config::LlamaConfig;
pub use decoder::Llama;
