//! ModernBERT.
//!
//! ```text
//! config.rs    config.json
//! positions.rs rotations and windows of the blocks
//! family.rs    the entry of a run file, and predictions
//! encoder.rs   embeddings and blocks
//! heads.rs     the heads, and their losses and scores
//! keys.rs      the names of the parameters in files
//! ```

mod config;
mod encoder;
mod family;
mod heads;
mod keys;
mod positions;

pub use config::{LayerType, ModernBertConfig, Pooling, RopeParameters};
pub use encoder::ModernBert;
pub use family::ModernBertShape;
pub use heads::{ModernBertMaskedLm, ModernBertSequenceClassifier, ModernBertTokenClassifier};
