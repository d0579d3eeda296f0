//! Models that a run can train.

use firebrick::{Data, Objective};
use firebrick_datasets::{Batch, Labels};
use firebrick_models::WrittenScores;
use firebrick_models::pretrained::{Folder, Pretrained};

use super::family::Family;
use super::{RunError, TaskData};
use crate::Legible;
use crate::answers::Answers;

/// A model with the head of a task, which run files can name once it is [registered](super::Families::model).
///
/// A model of your own implements:
///
/// - [`Pretrained`]: its new weights, and the names of its parameters in Hugging Face folders,
/// - [`Family`] for its configuration: the model's entry in a run file, and what the configuration says about a model,
/// - [`Objective`]: its loss,
/// - [`Answers`]: its predictions for texts,
/// - this trait: the task that it learns.
///
/// ```
/// use firebrick_cli::{Program, Trainable};
///
/// fn with_model<M: Trainable>(name: &'static str) -> Program {
///     Program::new().model::<M>(name)
/// }
/// # let _ = with_model::<firebrick_models::Gpt>("Small");
/// ```
pub trait Trainable: Pretrained<Config: Family> + Objective<Self::Batch> + Answers + Clone + 'static {
    /// The task that the model learns, by its name in a run file.
    const TASK: &'static str;

    /// The batches that the model is trained on.
    type Batch: Batch + Legible;

    /// Returns the configuration for the weights of a folder.
    ///
    /// # Errors
    ///
    /// The folder belongs to another family, or its configuration is not supported.
    fn config_of(folder: &Folder) -> Result<Self::Config, RunError> {
        Ok(folder.config()?)
    }

    /// Returns the names of the classes, if the model is a classifier.
    fn label_names(config: &Self::Config) -> Option<Vec<String>> {
        config.label_names()
    }

    /// Returns the batches of the model's task and the names of their labels, or `None` for another task.
    fn batches(data: TaskData) -> Option<(Data<Self::Batch>, Option<Labels>)>;

    /// Returns the same model, which generates and scores texts in evaluation if its task supports it.
    fn scoring(self, _: WrittenScores) -> Self {
        self
    }

    /// Returns the tokens of the source rows, padding included; 0 without a source.
    fn source_tokens(_: &Self::Batch) -> usize {
        0
    }

    /// Returns the token that the decoder starts from, if the model is an encoder-decoder.
    fn start_of(config: &Self::Config) -> Option<u32> {
        config.start()
    }
}
