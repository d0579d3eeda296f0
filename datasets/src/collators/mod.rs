//! Turns samples into batches, with one file for each task.

mod causal_lm;
mod counter;
mod inputs;
mod labeled_batch;
mod labels;
mod masked_lm;
mod masking;
mod packing;
mod roles;
mod seq2seq;
mod seq2seq_batch;
mod sequence_batch;
mod sequence_classification;
#[cfg(test)]
mod testing;
mod token_classification;
mod words;

pub use causal_lm::{CausalLm, CausalSample};
pub use inputs::{Inputs, Tokens};
pub use labeled_batch::LabeledBatch;
pub use labels::Labels;
pub use masked_lm::{MaskableTokens, MaskedLm};
pub use masking::Masking;
pub use packing::{Pack, Packing};
pub use seq2seq::{Seq2Seq, Seq2SeqSample};
pub use seq2seq_batch::Seq2SeqBatch;
pub use sequence_batch::SequenceBatch;
pub use sequence_classification::{ClassifiedTokens, Label, SequenceClassification, Target};
pub use token_classification::{LabeledTokens, Subwords, TokenClassification};
