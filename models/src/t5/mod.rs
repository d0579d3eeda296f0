//! T5 and mT5: an encoder and a decoder.
//!
//! ```text
//! config.rs  config.json
//! family.rs  the entry of a run file, and predictions
//! model.rs   the encoder and the decoder
//! block.rs   their blocks, and the bias of attention scores by the distance of two positions
//! keys.rs    the names of the parameters in files
//! ```

mod block;
mod config;
mod family;
mod keys;
mod model;

pub use config::T5Config;
pub use family::T5Shape;
pub use model::T5;
