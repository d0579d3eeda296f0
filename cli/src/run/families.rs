//! The families that a run file can name.

use std::path::PathBuf;

use firebrick_models::family::{Family, Trainable};
use firebrick_models::pretrained::{Folder, HubConfig, PretrainedError};
use firebrick_models::{
    Bart, BertMaskedLm, BertSequenceClassifier, BertTokenClassifier, Gpt, Llama, ModelType,
    ModernBertMaskedLm, ModernBertSequenceClassifier, ModernBertTokenClassifier, Preferring, T5,
};
use firebrick_strategies::registry::{Registered, Registry};
use firebrick_tasks::TaskConfig;

use super::Run;
use super::model_config::{AnyShape, FromFolder, named};
use crate::RunError;
use crate::console::tell;
use crate::hub::{FileSet, local_folder};

/// The families of models that a run file can name, with a model for each task that a family learns.
#[derive(Clone, Debug, Default)]
pub struct Families {
    shapes: Registry<dyn AnyShape>,
    families: Vec<Entry>,
}

/// A family.
#[derive(Clone, Debug)]
struct Entry {
    name: &'static str,
    /// Its values of `model_type` in Hugging Face folders.
    model_types: &'static [&'static str],
    /// Its models, by task.
    models: Vec<ModelType>,
}

impl Registered for dyn AnyShape {
    const KIND: &'static str = "a model";

    fn built_in() -> Registry<dyn AnyShape> {
        Families::built_in().shapes
    }
}

impl Families {
    /// Returns the families that Firebrick has.
    pub fn built_in() -> Self {
        Self::default()
            .model::<Gpt>("Gpt")
            .model::<Preferring<Gpt>>("Gpt")
            .model::<Llama>("Llama")
            .model::<Preferring<Llama>>("Llama")
            .model::<BertMaskedLm>("Bert")
            .model::<BertTokenClassifier>("Bert")
            .model::<BertSequenceClassifier>("Bert")
            .model::<ModernBertMaskedLm>("ModernBert")
            .model::<ModernBertTokenClassifier>("ModernBert")
            .model::<ModernBertSequenceClassifier>("ModernBert")
            .model::<T5>("T5")
            .model::<Bart>("Bart")
            .folder("Pretrained")
    }

    /// Registers the entry of a Hugging Face folder.
    fn folder(self, name: &'static str) -> Self {
        Self { shapes: self.shapes.with(name, FromFolder::named), ..self }
    }

    /// Registers a model by the name of its family. A family may have a model for each task; a later model replaces an
    /// earlier one of the same family and task.
    pub fn model<M: Trainable>(mut self, name: &'static str) -> Self {
        let shapes = self.shapes.with::<<M::Config as Family>::Shape>(name, named::<M::Config>);
        let model = ModelType::of::<M>();
        match self.families.iter_mut().find(|family| family.name == name) {
            Some(family) => {
                family.models.retain(|other| other.task() != model.task());
                family.models.push(model);
            }
            None => {
                let model_types = M::Config::MODEL_TYPES;
                self.families.push(Entry { name, model_types, models: vec![model] });
            }
        }
        Self { shapes, ..self }
    }

    /// Calls `read`, in which run files may name these.
    pub(crate) fn reading<R>(&self, read: impl FnOnce() -> R) -> R {
        self.shapes.reading(read)
    }

    /// Returns the names of fresh models that learn a task, in the order in which they are registered.
    pub(crate) fn fresh_for(&self, task: &TaskConfig) -> Vec<&'static str> {
        let learned = task.learned_as().unwrap_or(task.name());
        let learns = |family: &&Entry| family.models.iter().any(|model| model.task() == learned);
        self.families.iter().filter(learns).map(|family| family.name).collect()
    }

    /// Returns the model of a folder.
    ///
    /// # Errors
    ///
    /// The folder belongs to an unknown family, or its model does not learn the task.
    pub(crate) fn model_in(&self, task: &TaskConfig, folder: &Folder) -> Result<ModelType, RunError> {
        let family = self.of_folder(folder)?;
        self.model_of(task, Some(family), folder.model_type().unwrap_or(family.name))
    }

    /// Returns a family's model for a task. `found` is the name of the family where the run has it from.
    fn model_of(
        &self,
        task: &TaskConfig,
        family: Option<&Entry>,
        found: &str,
    ) -> Result<ModelType, RunError> {
        let learned = task.learned_as().unwrap_or(task.name());
        let model = family.and_then(|family| family.models.iter().find(|model| model.task() == learned));
        model.copied().ok_or_else(|| RunError::Task {
            task: task.name(),
            models: self.that_learn(learned),
            found: found.into(),
        })
    }

    /// Returns the family of a folder.
    fn of_folder(&self, folder: &Folder) -> Result<&Entry, RunError> {
        let found = folder.model_type().unwrap_or("none");
        let family = self.families.iter().find(|family| family.model_types.contains(&found));
        family.ok_or_else(|| RunError::Family {
            folder: folder.path().into(),
            known: self.families.iter().flat_map(|family| family.model_types).copied().collect(),
            found: found.into(),
        })
    }

    /// Returns the names of the models that learn a task, for a message.
    fn that_learn(&self, task: &str) -> String {
        let learns = |family: &&Entry| family.models.iter().any(|model| model.task() == task);
        let families: Vec<&Entry> = self.families.iter().filter(learns).collect();
        let names: Vec<String> = families.iter().map(|family| format!("`{}`", family.name)).collect();
        let types: Vec<&str> = families.iter().flat_map(|family| family.model_types).copied().collect();
        match types.split_last() {
            None => names.join(" or "),
            Some((last, [])) => format!("{}, or `Pretrained` of {last}", names.join(", ")),
            Some((last, rest)) => {
                format!("{}, or `Pretrained` of {} or {last}", names.join(", "), rest.join(", "))
            }
        }
    }
}

impl Run {
    fn families(&self) -> &Families {
        &self.registries.0.families
    }

    /// Returns the model that the run names, with the folder of its weights, unless they are fresh.
    ///
    /// # Errors
    ///
    /// The folder is not a Hugging Face folder or belongs to an unknown family, or the model does not learn the task.
    pub(crate) fn named_model(&self) -> Result<(ModelType, Option<Folder>), RunError> {
        self.named_model_in(FileSet::Model, Folder::open)
    }

    /// The same for a run that reads no weights: the folder may lack them, and those of a repository are not downloaded.
    ///
    /// # Errors
    ///
    /// Those of [`named_model`](Self::named_model).
    pub(crate) fn described_model(&self) -> Result<(ModelType, Option<Folder>), RunError> {
        self.named_model_in(FileSet::Beside, Folder::described)
    }

    fn named_model_in(
        &self,
        files: FileSet,
        open: impl FnOnce(PathBuf) -> Result<Folder, PretrainedError>,
    ) -> Result<(ModelType, Option<Folder>), RunError> {
        let Some(path) = self.model.folder() else {
            let families = self.families();
            let family = families.families.iter().find(|family| family.name == self.model.name());
            return Ok((families.model_of(&self.task, family, self.model.name())?, None));
        };
        let folder = open(local_folder(path, files, &tell)?.into_owned())?;
        Ok((self.model_in(&folder)?, Some(folder)))
    }

    /// Returns the model of a folder, for the task of the run.
    ///
    /// # Errors
    ///
    /// Those of [`Families::model_in`].
    pub(crate) fn model_in(&self, folder: &Folder) -> Result<ModelType, RunError> {
        self.families().model_in(&self.task, folder)
    }

    /// Returns the model of a folder as one that writes texts: the causal language model of a task such as `Dpo`, whose
    /// own model reads pairs of texts.
    ///
    /// # Errors
    ///
    /// Those of [`Families::model_in`].
    pub(crate) fn writer_in(&self, folder: &Folder) -> Result<ModelType, RunError> {
        self.families().model_in(&TaskConfig::default(), folder).or_else(|_| self.model_in(folder))
    }
}
