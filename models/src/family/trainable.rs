//! Models that a run can train.

use firebrick::Objective;
use firebrick_datasets::Batch;

use super::Family;
use crate::WrittenScores;
use crate::inference::Answers;
use crate::pretrained::Pretrained;

/// A model with the head of a task, which run files can name once it is registered there.
///
/// A model of your own implements:
///
/// - [`Pretrained`]: its new weights, and the names of its parameters in Hugging Face folders,
/// - [`Family`] for its configuration: the model's entry in a run file, and what the configuration says about a model,
/// - [`Objective`]: its loss,
/// - [`Answers`]: its predictions for texts,
/// - this trait: the task that it learns.
pub trait Trainable: Pretrained<Config: Family> + Objective<Self::Batch> + Answers + Clone + 'static {
    /// The task that the model learns, by its name in a run file.
    const TASK: &'static str;

    /// The batches that the model is trained on, those of the task.
    type Batch: Batch;

    /// Returns the same model, which generates and scores texts in evaluation if its task supports it.
    fn scoring(self, _: WrittenScores) -> Self {
        self
    }

    /// Returns the tokens of the source rows, padding included; 0 without a source.
    fn source_tokens(_: &Self::Batch) -> usize {
        0
    }

    /// Returns the rows of a batch. Default: one for each sample.
    fn rows(batch: &Self::Batch) -> usize {
        batch.samples()
    }
}
