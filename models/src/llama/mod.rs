//! Llama and related decoders.
//!
//! ```text
//! config.rs    config.json
//! family.rs    the entry of a run file, and predictions
//! decoder.rs   the model
//! keys.rs      the names of the parameters in files
//! ```

mod config;
mod decoder;
mod family;
mod keys;

pub use config::LlamaConfig;
pub use decoder::Llama;
pub use family::LlamaShape;
