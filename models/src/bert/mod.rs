//! BERT, RoBERTa, DistilBERT, ELECTRA, DeBERTa and related models.
//!
//! ```text
//! config.rs    config.json
//! kind.rs      what distinguishes the models
//! deberta.rs   the fields that only a DeBERTa has
//! family.rs    the entry of a run file
//! encoder.rs   embeddings and blocks
//! disentangled.rs what only a DeBERTa computes: attention by the distance of two tokens, and a convolution
//! heads.rs     what their heads have of their own
//! keys.rs      the names of the parameters in files
//! ```

mod config;
mod deberta;
mod disentangled;
mod encoder;
mod family;
mod heads;
mod keys;
mod kind;

pub use config::BertConfig;
pub use encoder::Bert;
pub use family::BertShape;
pub use heads::{BertMaskedLm, BertSequenceClassifier, BertTokenClassifier};
