//! Maps tasks to models.

use firebrick_datasets::{Batch, LabeledBatch, Labels, Seq2SeqBatch, SequenceBatch, TokenBatch};

use super::family::Family;
use super::{ModelConfig, Run, RunError, TaskConfig, TaskData};
use crate::Legible;
use crate::answers::Answers;
use firebrick::{Data, Objective};
use firebrick_models::pretrained::{Folder, HubConfig, Pretrained};
use firebrick_models::{
    BertConfig, BertMaskedLm, BertSequenceClassifier, BertTokenClassifier, Gpt, Gpt2Config, Llama,
    LlamaConfig, T5, T5Config, WrittenScores,
};

/// A model with the head of a task.
pub(crate) trait Trainable:
    Pretrained<Config: Family> + Objective<Self::Batch> + Answers + Clone + 'static
{
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

impl Trainable for Gpt {
    type Batch = TokenBatch;

    fn batches(data: TaskData) -> Option<(Data<TokenBatch>, Option<Labels>)> {
        of_next_tokens(data)
    }
}

impl Trainable for Llama {
    type Batch = TokenBatch;

    fn batches(data: TaskData) -> Option<(Data<TokenBatch>, Option<Labels>)> {
        of_next_tokens(data)
    }
}

fn of_next_tokens(data: TaskData) -> Option<(Data<TokenBatch>, Option<Labels>)> {
    match data {
        TaskData::CausalLm(data) => Some((data, None)),
        _ => None,
    }
}

impl Trainable for BertMaskedLm {
    type Batch = LabeledBatch;

    fn batches(data: TaskData) -> Option<(Data<LabeledBatch>, Option<Labels>)> {
        match data {
            TaskData::MaskedLm(data) => Some((data, None)),
            _ => None,
        }
    }
}

impl Trainable for BertTokenClassifier {
    type Batch = LabeledBatch;

    fn batches(data: TaskData) -> Option<(Data<LabeledBatch>, Option<Labels>)> {
        match data {
            TaskData::TokenClassification(data, labels) => Some((data, Some(labels))),
            _ => None,
        }
    }
}

impl Trainable for BertSequenceClassifier {
    type Batch = SequenceBatch;

    fn batches(data: TaskData) -> Option<(Data<SequenceBatch>, Option<Labels>)> {
        match data {
            TaskData::SequenceClassification(data, labels) => Some((data, labels)),
            _ => None,
        }
    }
}

impl Trainable for T5 {
    type Batch = Seq2SeqBatch;

    fn batches(data: TaskData) -> Option<(Data<Seq2SeqBatch>, Option<Labels>)> {
        match data {
            TaskData::Seq2Seq(data) => Some((data, None)),
            _ => None,
        }
    }

    fn scoring(self, scores: WrittenScores) -> Self {
        T5::scoring(self, scores)
    }

    fn source_tokens(batch: &Seq2SeqBatch) -> usize {
        batch.source().shape().iter().product()
    }
}

/// A visitor that runs once the model of a run is known.
pub(crate) trait ForModel {
    /// The visitor's result.
    type Output;

    /// Visits the model; `folder` holds its weights, unless they are fresh.
    fn with<M: Trainable>(self, folder: Option<Folder>) -> Result<Self::Output, RunError>;
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Gpt,
    Llama,
    Bert,
    T5,
}

impl Run {
    /// Finds the model that the run names and visits it.
    ///
    /// # Errors
    ///
    /// The folder is not a Hugging Face folder or belongs to an unknown family, the model does not learn the task, or
    /// the visitor fails.
    pub(crate) fn for_model<V: ForModel>(&self, visitor: V) -> Result<V::Output, RunError> {
        let folder = match &self.model {
            ModelConfig::Pretrained(path) => Some(Folder::open(path)?),
            _ => None,
        };
        self.for_model_of(folder, visitor)
    }

    /// Like [`for_model`](Self::for_model), with the weights of an open folder, if there is one.
    pub(crate) fn for_model_of<V: ForModel>(
        &self,
        folder: Option<Folder>,
        visitor: V,
    ) -> Result<V::Output, RunError> {
        let kind = match &folder {
            Some(folder) => kind_of(folder)?,
            None => match &self.model {
                ModelConfig::Gpt(_) => Kind::Gpt,
                ModelConfig::Llama(_) => Kind::Llama,
                ModelConfig::Bert(_) => Kind::Bert,
                ModelConfig::T5(_) => Kind::T5,
                ModelConfig::Pretrained(path) => {
                    return self.for_model_of(Some(Folder::open(path)?), visitor);
                }
            },
        };
        match (&self.task, kind) {
            (TaskConfig::CausalLm { .. }, Kind::Gpt) => visitor.with::<Gpt>(folder),
            (TaskConfig::CausalLm { .. }, Kind::Llama) => visitor.with::<Llama>(folder),
            (TaskConfig::MaskedLm { .. }, Kind::Bert) => visitor.with::<BertMaskedLm>(folder),
            (TaskConfig::TokenClassification { .. }, Kind::Bert) => {
                visitor.with::<BertTokenClassifier>(folder)
            }
            (TaskConfig::SequenceClassification { .. }, Kind::Bert) => {
                visitor.with::<BertSequenceClassifier>(folder)
            }
            (TaskConfig::Seq2Seq { .. }, Kind::T5) => visitor.with::<T5>(folder),
            (task, _) => {
                let found = folder.as_ref().and_then(Folder::model_type).unwrap_or(self.model.name());
                Err(RunError::Task { task: task.name(), models: models_of(task), found: found.into() })
            }
        }
    }
}

fn kind_of(folder: &Folder) -> Result<Kind, RunError> {
    let found = folder.model_type().unwrap_or("none");
    let kinds = [
        (Kind::Gpt, Gpt2Config::MODEL_TYPES),
        (Kind::Llama, LlamaConfig::MODEL_TYPES),
        (Kind::Bert, BertConfig::MODEL_TYPES),
        (Kind::T5, T5Config::MODEL_TYPES),
    ];
    match kinds.iter().find(|(_, names)| names.contains(&found)) {
        Some((kind, _)) => Ok(*kind),
        None => Err(RunError::Family {
            folder: folder.path().into(),
            known: kinds.iter().flat_map(|(_, names)| *names).copied().collect(),
            found: found.into(),
        }),
    }
}

/// Returns the models of a run file that learn a task.
fn models_of(task: &TaskConfig) -> &'static str {
    match task {
        TaskConfig::CausalLm { .. } => "`Gpt`, `Llama`, or `Pretrained` of gpt2, llama, mistral or qwen2",
        TaskConfig::Seq2Seq { .. } => "`T5`, or `Pretrained` of t5",
        _ => "`Bert`, or `Pretrained` of bert, roberta, xlm-roberta or camembert",
    }
}
