//! Turns records into samples and samples into batches: a [`Collator`](crate::Collator) for each task, with its samples
//! and its batches.
//!
//! ```text
//! causal_lm                next tokens of texts or completions
//! ├── causal_sample           tokens, and which of them count
//! ├── chat                    conversations, of which the answers count
//! └── packing                 several samples in one row
//! preferences              pairs of a better and a worse answer
//! ├── preference_record       records as pairs
//! ├── preference_batch        padded pairs
//! └── dpo                     how pairs are learned
//! masked_lm                hidden tokens, or whole words
//! ├── masking                 how many tokens are hidden, and what replaces them
//! ├── words                   groups tokens into words
//! └── counter                 random numbers from seed, epoch, sample and position
//! seq2seq                  one text into another
//! └── seq2seq_batch           padded sources and targets
//! token_classification     a label for each word
//! sequence_classification  a label for each text or pair
//! └── sequence_batch          inputs with a label for each row
//! labels                   class names and ids
//! └── collected_labels        the names in some data
//! inputs                   rows for an encoder: ids, mask, segments
//! └── labeled_batch           inputs with a label for each token
//! roles                    resolves the token of a role
//! ```

mod causal_lm;
mod causal_sample;
mod chat;
mod collected_labels;
mod counter;
mod dpo;
mod inputs;
#[cfg(test)]
mod keeping_tests;
mod labeled_batch;
mod labels;
mod masked_lm;
mod masking;
mod packing;
mod preference_batch;
mod preference_record;
mod preferences;
mod roles;
mod seq2seq;
mod seq2seq_batch;
mod sequence_batch;
mod sequence_classification;
#[cfg(test)]
pub(crate) mod testing;
mod token_classification;
mod words;

pub use causal_lm::CausalLm;
pub use causal_sample::CausalSample;
pub use chat::{Chat, Learned};
pub use dpo::Dpo;
pub use inputs::{Inputs, Tokens};
pub use labeled_batch::LabeledBatch;
pub use labels::{Labels, Numbers};
pub use masked_lm::{MaskableTokens, MaskedLm};
pub use masking::Masking;
pub use packing::{Pack, Packing};
pub use preference_batch::{PreferenceBatch, PreferenceSample};
pub use preference_record::PreferenceFields;
pub use preferences::{KeptEnd, Preferences};
pub use seq2seq::{Seq2Seq, Seq2SeqSample};
pub use seq2seq_batch::Seq2SeqBatch;
pub use sequence_batch::SequenceBatch;
pub use sequence_classification::{ClassifiedTokens, Label, SequenceClassification, Target};
pub use token_classification::{LabeledTokens, Subwords, TokenClassification};
