//! T5: an encoder and a decoder.
//!
//! ```text
//! config.rs         config.json
//! model.rs          both, with the head
//! block.rs          their blocks
//! relative_bias.rs  what attention scores gain by the distance of two positions
//! keys.rs           which tensor of a file is which parameter
//! ```

mod block;
mod config;
mod keys;
mod model;
mod relative_bias;

pub use config::T5Config;
pub use model::{Encoded, T5};
