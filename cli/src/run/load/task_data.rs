//! The batches of a run, by task.

use firebrick::Data;
use firebrick_datasets::{LabeledBatch, Labels, Seq2SeqBatch, SequenceBatch, TokenBatch};

/// The batches of a run, of the type that its task uses.
#[derive(Debug)]
pub enum TaskData {
    /// Batches of `CausalLm`.
    CausalLm(Data<TokenBatch>),
    /// Batches of `MaskedLm`.
    MaskedLm(Data<LabeledBatch>),
    /// Batches of `TokenClassification`, with the names of the labels.
    TokenClassification(Data<LabeledBatch>, Labels),
    /// Batches of `SequenceClassification`, with the names of the classes, unless the label is a number.
    SequenceClassification(Data<SequenceBatch>, Option<Labels>),
    /// Batches of `Seq2Seq`.
    Seq2Seq(Data<Seq2SeqBatch>),
}
