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

impl TaskData {
    /// Returns the batches of `CausalLm`, which have no names of labels, or `None` for another task. It is
    /// [`Trainable::batches`](crate::Trainable::batches) of a causal language model.
    pub fn causal_lm(self) -> Option<(Data<TokenBatch>, Option<Labels>)> {
        match self {
            Self::CausalLm(data) => Some((data, None)),
            _ => None,
        }
    }
}
