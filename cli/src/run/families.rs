//! The families that a run file can name.

use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};

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

/// The families of this process.
static INSTALLED: RwLock<Option<&'static Families>> = RwLock::new(None);

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

    /// Makes these the families that this process reads. Call it once, before it reads a run file.
    pub fn install(self) {
        self.shapes.clone().install();
        *INSTALLED.write().unwrap_or_else(PoisonError::into_inner) = Some(Box::leak(Box::new(self)));
    }

    fn installed() -> &'static Self {
        let installed = *INSTALLED.read().unwrap_or_else(PoisonError::into_inner);
        installed.unwrap_or_else(|| {
            Self::built_in().install();
            Self::installed()
        })
    }

    /// Returns the names of fresh models that learn a task, in the order in which they are registered.
    pub(crate) fn fresh_for(task: &TaskConfig) -> Vec<&'static str> {
        let learned = task.learned_as().unwrap_or(task.name());
        let learns = |family: &&Entry| family.models.iter().any(|model| model.task() == learned);
        Self::installed().families.iter().filter(learns).map(|family| family.name).collect()
    }

    /// Returns the model of a folder.
    ///
    /// # Errors
    ///
    /// The folder belongs to an unknown family, or its model does not learn the task.
    pub(crate) fn model_in(task: &TaskConfig, folder: &Folder) -> Result<ModelType, RunError> {
        let family = Entry::of_folder(folder)?;
        Self::model_of(task, Some(family), folder.model_type().unwrap_or(family.name))
    }

    /// Returns a family's model for a task. `found` is the name of the family where the run has it from.
    fn model_of(
        task: &TaskConfig,
        family: Option<&'static Entry>,
        found: &str,
    ) -> Result<ModelType, RunError> {
        let learned = task.learned_as().unwrap_or(task.name());
        let model = family.and_then(|family| family.models.iter().find(|model| model.task() == learned));
        model.copied().ok_or_else(|| RunError::Task {
            task: task.name(),
            models: Self::installed().that_learn(learned),
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

impl Entry {
    fn of_folder(folder: &Folder) -> Result<&'static Self, RunError> {
        let (found, families) = (folder.model_type().unwrap_or("none"), &Families::installed().families);
        let family = families.iter().find(|family| family.model_types.contains(&found));
        family.ok_or_else(|| RunError::Family {
            folder: folder.path().into(),
            known: families.iter().flat_map(|family| family.model_types).copied().collect(),
            found: found.into(),
        })
    }
}

impl Run {
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
            let families = &Families::installed().families;
            let family = families.iter().find(|family| family.name == self.model.name());
            return Ok((Families::model_of(&self.task, family, self.model.name())?, None));
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
        Families::model_in(&self.task, folder)
    }

    /// Returns the model of a folder as one that writes texts: the causal language model of a task such as `Dpo`, whose
    /// own model reads pairs of texts.
    ///
    /// # Errors
    ///
    /// Those of [`Families::model_in`].
    pub(crate) fn writer_in(&self, folder: &Folder) -> Result<ModelType, RunError> {
        Families::model_in(&TaskConfig::default(), folder).or_else(|_| self.model_in(folder))
    }
}
