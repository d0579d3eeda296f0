//! BERT, RoBERTa and related models.
//!
//! ```text
//! config.rs    config.json
//! encoder.rs   embeddings and blocks
//! heads.rs     the heads, and their losses and scores
//! keys.rs      the names of the parameters in files
//! ```

mod config;
mod encoder;
mod heads;
mod keys;

pub use config::BertConfig;
pub use encoder::Bert;
pub use heads::{BertMaskedLm, BertSequenceClassifier, BertTokenClassifier};
