//! BART: an encoder and a decoder.
//!
//! ```text
//! config.rs      config.json
//! family.rs      the entry of a run file, and predictions
//! model.rs       the encoder and the decoder
//! block.rs       the blocks of both
//! keys.rs        the names of the parameters in files
//! ```

mod block;
mod config;
mod family;
mod keys;
mod model;

pub use config::BartConfig;
pub use family::BartShape;
pub use model::Bart;
