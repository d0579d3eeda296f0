//! ModernBERT.
//!
//! ```text
//! config.rs    config.json
//! positions.rs rotations and windows of the blocks
//! family.rs    the entry of a run file
//! encoder.rs   embeddings and blocks
//! heads.rs     what its heads have of their own
//! keys.rs      the names of the parameters in files
//! ```

mod config;
mod encoder;
mod family;
mod heads;
mod keys;
mod positions;

pub use config::{LayerType, ModernBertConfig, RopeParameters};
pub use encoder::ModernBert;
pub use family::ModernBertShape;
pub use heads::{ModernBertMaskedLm, ModernBertSequenceClassifier, ModernBertTokenClassifier};
