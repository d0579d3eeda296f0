//! The task: what a model learns from the data.
//!
//! ```text
//! mod.rs         Task: what a model learns; and the tasks that a run file can name
//! asks.rs        Asks: what a record asks a trained model
//! chat.rs        conversations, and their templates
//! fits.rs        checks that a model can read the rows of the data
//! fields.rs      fields of records, as JSON
//! suggestion.rs  what a task suggests for new data
//! *.rs           one file for each task: its entry in a run file, its data and its predictions
//! ```

mod asks;
mod causal_lm;
mod chat;
mod dpo;
mod entity_scheme;
mod fields;
mod fits;
mod masked_lm;
mod seq2seq;
mod sequence_classification;
mod suggestion;
mod token_classification;

use std::fmt::{self, Debug, Formatter};
use std::ops::Deref;
use std::sync::Arc;

use firebrick_datasets::{DataError, Record, Reference, Tokenizer};
use firebrick_models::inference::LabelKind;
use firebrick_strategies::SettingError;
use firebrick_strategies::registry::{Named, Registered, Registry};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::load::Texts;
use crate::{DataConfig, LoadError, Loaded, Loading};

pub use asks::{Asks, Writing};
pub use causal_lm::{CausalLmTask, Rows};
pub use chat::{ChatConfig, STANDARD_INPUT, TemplateConfig, chat_prompt};
pub use dpo::{DpoTask, PreferenceChat};
pub use entity_scheme::entity_scheme;
pub use fields::record_json;
pub use masked_lm::MaskedLmTask;
pub use seq2seq::Seq2SeqTask;
pub use sequence_classification::SequenceClassificationTask;
pub use suggestion::{Examples, Suggestion};
pub use token_classification::TokenClassificationTask;

/// The tasks that a run file can name.
pub type Tasks = Registry<dyn Task>;

/// Registers the tasks of this crate by their names, and makes each an entry of a run file.
macro_rules! built_in {
    ($($name:literal: $task:ty),* $(,)?) => {
        impl Registered for dyn Task {
            const KIND: &'static str = "a task";

            fn built_in() -> Tasks {
                Tasks::default()$(.with($name, TaskConfig::named::<$task>))*
            }
        }

        $(impl From<$task> for TaskConfig {
            fn from(task: $task) -> Self {
                Self::new($name, task)
            }
        })*
    };
}

built_in! {
    "CausalLm": CausalLmTask,
    "MaskedLm": MaskedLmTask,
    "TokenClassification": TokenClassificationTask,
    "SequenceClassification": SequenceClassificationTask,
    "Seq2Seq": Seq2SeqTask,
    "Dpo": DpoTask,
}

/// What a model learns from the data: which fields of a record are read, and how they become batches. What a record asks
/// a trained model is [`Asks`].
///
/// A type that also implements `PartialEq` and serde's traits is an entry of the run file once it is added to the program
/// with `firebrick_cli::Program::task`. The models that learn it name it in
/// [`Trainable::TASK`](firebrick_models::family::Trainable::TASK), or are those of [another task](Self::learned_as) with
/// the same batches.
///
/// ```
/// use firebrick_datasets::collators::CausalLm;
/// use firebrick_datasets::{DataError, Record};
/// use firebrick_models::inference::Question;
/// use firebrick_tasks::{
///     Asks, DataConfig, Dataset, LoadError, Loaded, Loading, Task, TaskConfig, TokenizerConfig,
/// };
/// use serde::{Deserialize, Serialize};
/// use serde_json::Value;
///
/// /// `task: Titles(field: "title")` in a run file: predicts the next token of titles.
/// #[derive(Debug, PartialEq, Serialize, Deserialize)]
/// #[serde(deny_unknown_fields)]
/// struct Titles {
///     field: String,
/// }
///
/// impl Task for Titles {
///     fn texts<'r>(&self, record: &'r Record) -> Result<Vec<&'r str>, DataError> {
///         Ok(vec![record.text(&self.field)?])
///     }
///
///     fn load(&self, loading: &Loading<'_>) -> Result<Loaded, LoadError> {
///         let tokenizer = loading.tokenizer()?;
///         let collator = CausalLm::new(loading.encoder(&tokenizer, None)).field(&self.field);
///         let batches = loading.batches(collator.padding(loading.padding(&tokenizer)))?;
///         Ok(loading.loaded(tokenizer, batches))
///     }
///
///     fn learned_as(&self) -> Option<&'static str> {
///         Some("CausalLm")
///     }
/// }
///
/// impl Asks for Titles {
///     fn question(&self, record: &Record) -> Result<(Question, Option<Value>), DataError> {
///         Ok((Question::Text(record.text(&self.field)?.into()), None))
///     }
/// }
///
/// let titles = TaskConfig::new("Titles", Titles { field: "title".into() });
/// let data = DataConfig::new("books.jsonl", TokenizerConfig::Characters);
/// let dataset = Dataset::new(titles, data, 16);
/// ```
pub trait Task: Asks + Debug + Send + Sync + 'static {
    /// Checks the ranges of the settings, with those of the data.
    ///
    /// # Errors
    ///
    /// The first setting of the task that is out of range, or contradicts the data's settings.
    fn check(&self, data: &DataConfig) -> Result<(), SettingError> {
        let _ = data;
        Ok(())
    }

    /// Checks the data's settings: those that the task does not use, and those that it needs.
    ///
    /// # Errors
    ///
    /// The first setting of `data` that the task cannot use. Settings of the task stand in backticks.
    fn check_data(&self, data: &DataConfig) -> Result<(), SettingError> {
        let _ = data;
        Ok(())
    }

    /// Whether the loss is over classes, which `label_smoothing` of the run smooths. Default: yes.
    fn smooths_labels(&self) -> bool {
        true
    }

    /// Returns the model that the trained one is compared with, if the task has one.
    fn reference(&self) -> Option<Reference> {
        None
    }

    /// Returns the settings that a resumed run may change, because they do not affect what the model learns. Default:
    /// none.
    fn changeable(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the texts of a record that are tokenized.
    ///
    /// # Errors
    ///
    /// The record lacks a field.
    fn texts<'r>(&self, record: &'r Record) -> Result<Vec<&'r str>, DataError>;

    /// Returns the text of a record whose perplexity `firebrick eval --perplexity` measures. Default: its
    /// [texts](Self::texts), one after the other.
    ///
    /// # Errors
    ///
    /// Those of [`texts`](Self::texts), and those of the tokenizer's chat template.
    fn measured_text(&self, record: &Record, tokenizer: &Tokenizer) -> Result<String, DataError> {
        let _ = tokenizer;
        Ok(self.texts(record)?.concat())
    }

    /// Reads the data of a run, and cuts it into batches.
    ///
    /// # Errors
    ///
    /// The data cannot be read, or does not fit the task.
    fn load(&self, loading: &Loading<'_>) -> Result<Loaded, LoadError>;

    /// Another task with the same batches, whose models learn this task too. Default: only models that name this task
    /// learn it.
    fn learned_as(&self) -> Option<&'static str> {
        None
    }

    /// The labels of a classifier, if the model is one.
    fn labels(&self) -> Option<LabelSettings<'_>> {
        None
    }

    /// Suggests settings for data that looks like these examples, for `firebrick init`. Default: none but the length of
    /// a row.
    ///
    /// # Errors
    ///
    /// Why the examples do not fit the task, and what it needs.
    fn suggest(&self, examples: &Examples) -> Result<Suggestion, String> {
        let fields = examples.fields();
        Ok(Suggestion::default().data("max_length", examples.length(&fields)))
    }

    /// The last tokens of each row that are labels only, which the model does not read.
    fn unread(&self) -> usize {
        0
    }

    /// The most tokens that each evaluation generates for each source; `None` if it generates none.
    fn evaluated_tokens(&self) -> Option<usize> {
        None
    }

    /// Returns the token that the decoder starts with in training, evaluation and generation. `of_model` is the one in
    /// the model's configuration.
    ///
    /// # Errors
    ///
    /// The tokenizer lacks the token that the task names.
    fn start_id(&self, of_model: Option<u32>, tokenizer: &Tokenizer) -> Result<Option<u32>, DataError> {
        let _ = (of_model, tokenizer);
        Ok(None)
    }
}

/// The labels of a classifier, as the task's settings name them.
#[derive(Clone, Copy, Debug)]
pub struct LabelSettings<'a> {
    /// The field of a record that holds them.
    pub field: &'a str,
    /// What a text's label is; `None` if words have labels.
    pub kind: Option<LabelKind>,
    /// Their names, in the order of their ids; if empty, those of the training data.
    pub names: &'a [String],
    /// Whether the classifier of a folder is dropped for a new one.
    pub new_head: bool,
}

/// The task of a run, one of the registered [tasks](Task).
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskConfig(Named<dyn Task>);

impl TaskConfig {
    /// Creates the entry of a task that is registered by this name.
    pub fn new<T: Task + PartialEq + Serialize>(name: &'static str, task: T) -> Self {
        Self(Self::named(name, task))
    }

    /// Returns the entry of a task for a [registry](Tasks): `tasks.with("Titles", TaskConfig::named::<Titles>)`.
    pub fn named<T: Task + PartialEq + Serialize>(name: &'static str, task: T) -> Named<dyn Task> {
        let task = Arc::new(task);
        Named::of(name, task.clone(), task)
    }

    /// Returns the task's name in a run file.
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Reads a task that has defaults for all of its settings, by its name.
    pub fn with_defaults(name: &str) -> Option<Self> {
        serde_json::from_value(json!({ name: {} })).ok()
    }

    /// Returns the task if it is of this type.
    pub fn downcast_ref<T: 'static>(&self) -> Option<&T> {
        self.0.downcast_ref()
    }
}

/// Returns `CausalLm()`.
impl Default for TaskConfig {
    fn default() -> Self {
        CausalLmTask::default().into()
    }
}

impl Deref for TaskConfig {
    type Target = dyn Task;

    fn deref(&self) -> &Self::Target {
        &**self.0.recipe()
    }
}

impl Texts for TaskConfig {
    fn texts<'r>(&self, record: &'r Record) -> Result<Vec<&'r str>, DataError> {
        (**self).texts(record)
    }
}

/// Prints the task as its type does.
impl Debug for TaskConfig {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
