//! BERT, RoBERTa and models like them.
//!
//! ```text
//! config.rs    config.json
//! encoder.rs   embeddings and blocks
//! heads.rs     what they are trained to say
//! keys.rs      which tensor of a file is which parameter
//! ```

mod config;
mod encoder;
mod heads;
mod keys;

pub use config::BertConfig;
pub use encoder::Bert;
pub use heads::{BertMaskedLm, BertSequenceClassifier, BertTokenClassifier};
