//! Llama and related decoders.
//!
//! ```text
//! config.rs    config.json
//! decoder.rs   the model
//! rope.rs      rotary position embedding
//! keys.rs      the names of the parameters in files
//! ```

mod config;
mod decoder;
mod keys;
mod rope;

pub use config::LlamaConfig;
pub use decoder::Llama;
