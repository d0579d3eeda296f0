//! Models whose type is only known when a file is read: their configurations, and all that a program does by them.

use std::any::{Any, TypeId};
use std::fmt::{self, Debug, Formatter};
use std::path::Path;
use std::sync::Arc;

use burn::tensor::{Device, TensorData};
use firebrick::{Adapters, AnyModel, TrainError};
use firebrick_datasets::collators::Labels;

use crate::WrittenScores;
use crate::family::{Attention, Family, Narrowing, Trainable};
use crate::inference::{Answer, Inference, LabelKind, Question};
use crate::pretrained::{self, Folder, HubConfig, Loaded, PretrainedError};

/// The type of a model, without a model.
#[derive(Clone, Copy)]
pub struct ModelType {
    task: &'static str,
    in_folder: fn(&Folder) -> Result<AnyConfig, PretrainedError>,
    of: fn(Box<dyn Any>) -> Option<AnyConfig>,
}

impl ModelType {
    /// Returns the type `M`.
    pub fn of<M: Trainable>() -> Self {
        Self {
            task: M::TASK,
            in_folder: |folder| folder.config().map(AnyConfig::of::<M>),
            of: |config| config.downcast().ok().map(|config| AnyConfig::of::<M>(*config)),
        }
    }

    /// Returns the [task](Trainable::TASK) that the model learns.
    pub fn task(&self) -> &'static str {
        self.task
    }

    /// Reads the configuration of a folder.
    ///
    /// # Errors
    ///
    /// Those of [`Folder::config`].
    pub fn config_in(&self, folder: &Folder) -> Result<AnyConfig, PretrainedError> {
        (self.in_folder)(folder)
    }

    /// Returns a configuration of the model's family as one of the model, or `None` if it is of another type.
    pub fn config_of(&self, config: Box<dyn Any>) -> Option<AnyConfig> {
        (self.of)(config)
    }
}

impl Debug for ModelType {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "ModelType({})", self.task)
    }
}

/// The configuration of a model of any type.
///
/// Whatever depends on the type is a method, so that a program which trains one of many models is compiled once: it creates,
/// loads, saves and asks an [`AnyModel`]. A model that is given to a method must be of the configuration's own type, as one
/// that it created is.
///
/// ```
/// use burn::module::Module;
/// use burn::tensor::Device;
/// use firebrick_models::{AnyConfig, Gpt, Gpt2Config};
///
/// let config = Gpt2Config { n_layer: 2, n_head: 2, n_embd: 8, vocab_size: 10, n_positions: 16, ..Default::default() };
/// let config = AnyConfig::of::<Gpt>(config);
/// let model = config.init(&Device::flex());
/// assert_eq!((config.layers(), config.with_layers(1).layers()), (2, 1));
/// assert!(model.num_params() > config.with_layers(1).init(&Device::flex()).num_params());
/// ```
///
/// # Panics
///
/// Methods that are given a model panic if it is of another type.
#[derive(Clone)]
pub struct AnyConfig(Arc<dyn Erased>);

impl AnyConfig {
    /// Erases the type of a model.
    pub fn of<M: Trainable>(config: M::Config) -> Self {
        Self(Arc::new(Of::<M>(config)))
    }
}

impl Debug for AnyConfig {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "AnyConfig({})", self.text().unwrap_or_default())
    }
}

/// The configuration of a model `M`.
struct Of<M: Trainable>(M::Config);

impl<M: Trainable> Of<M> {
    /// Returns the model itself.
    fn model(model: &AnyModel) -> &M {
        model.downcast_ref().expect("the model has the type of the configuration")
    }

    fn erased(config: M::Config) -> AnyConfig {
        AnyConfig::of::<M>(config)
    }

    fn loaded(Loaded { model, fresh, unread }: Loaded<M>) -> Loaded<AnyModel> {
        Loaded { model: AnyModel::new::<M::Batch>(model), fresh, unread }
    }
}

/// Declares the methods of a configuration once: of the trait object, of each type, and of [`AnyConfig`].
macro_rules! methods {
    ($($(#[$doc:meta])* fn $name:ident(&$this:ident $(, $arg:ident: $type:ty)*) -> $result:ty $body:block)*) => {
        trait Erased: Send + Sync {
            $(fn $name(&self $(, $arg: $type)*) -> $result;)*
        }

        impl<M: Trainable> Erased for Of<M> {
            $(fn $name(&$this $(, $arg: $type)*) -> $result $body)*
        }

        impl AnyConfig {
            $($(#[$doc])* pub fn $name(&self $(, $arg: $type)*) -> $result { self.0.$name($($arg),*) })*
        }
    };
}

methods! {
    /// See [`HubConfig::check`].
    ///
    /// # Errors
    ///
    /// The first setting that no model of the family can have.
    fn check(&self) -> Result<(), PretrainedError> {
        HubConfig::check(&self.0)
    }

    /// Returns the text of `config.json`, as [`config_text`](pretrained::config_text) does.
    ///
    /// # Errors
    ///
    /// The configuration cannot be written as JSON.
    fn text(&self) -> Result<String, PretrainedError> {
        pretrained::config_text::<M>(&self.0)
    }

    /// See [`Family::layers`].
    fn layers(&self) -> usize {
        self.0.layers()
    }

    /// See [`Family::with_layers`].
    fn with_layers(&self, layers: usize) -> AnyConfig {
        Self::erased(self.0.clone().with_layers(layers))
    }

    /// See [`Family::smallest`].
    fn smallest(&self) -> AnyConfig {
        Self::erased(self.0.clone().smallest())
    }

    /// See [`Family::narrowed`].
    fn narrowed(&self, to: Narrowing) -> Option<AnyConfig> {
        self.0.narrowed(to).map(Self::erased)
    }

    /// See [`Family::attention`].
    fn attention(&self) -> Vec<Attention> {
        self.0.attention()
    }

    /// See [`Family::reads_source`].
    fn reads_source(&self, path: &str) -> bool {
        self.0.reads_source(path)
    }

    /// See [`Family::vocabulary`].
    fn vocabulary(&self) -> usize {
        self.0.vocabulary()
    }

    /// See [`Family::with_vocabulary`].
    fn with_vocabulary(&self, vocabulary: usize) -> AnyConfig {
        Self::erased(self.0.clone().with_vocabulary(vocabulary))
    }

    /// See [`Family::positions`].
    fn positions(&self) -> Option<usize> {
        self.0.positions()
    }

    /// See [`Family::reads_segments`].
    fn reads_segments(&self) -> bool {
        self.0.reads_segments()
    }

    /// See [`Family::label_names`].
    fn label_names(&self) -> Option<Vec<String>> {
        self.0.label_names()
    }

    /// See [`Family::start`].
    fn start(&self) -> Option<u32> {
        self.0.start()
    }

    /// See [`Family::starting_from`].
    fn starting_from(&self, token: u32) -> AnyConfig {
        Self::erased(self.0.clone().starting_from(token))
    }

    /// See [`Family::labelled`].
    fn labelled(&self, kind: Option<LabelKind>, labels: Option<&Labels>) -> AnyConfig {
        Self::erased(self.0.clone().labelled(kind, labels))
    }

    /// See [`Trainable::divides_tokens`].
    fn divides_tokens(&self) -> bool {
        M::divides_tokens(&self.0)
    }

    /// Returns the type of the batches that the model is trained on.
    fn batch_type(&self) -> TypeId {
        TypeId::of::<M::Batch>()
    }

    /// Creates a model with new weights, drawn when they are first read.
    fn init(&self, device: &Device) -> AnyModel {
        AnyModel::new::<M::Batch>(M::init(&self.0, device))
    }

    /// See [`Folder::load`].
    ///
    /// # Errors
    ///
    /// Those of [`Folder::load`].
    fn load(&self, folder: &Folder, device: &Device) -> Result<Loaded<AnyModel>, PretrainedError> {
        folder.load::<M>(&self.0, device).map(Self::loaded)
    }

    /// See [`Folder::load_later`].
    ///
    /// # Errors
    ///
    /// Those of [`Folder::load_later`].
    fn load_later(&self, folder: &Folder, device: &Device) -> Result<Loaded<AnyModel>, PretrainedError> {
        folder.load_later::<M>(&self.0, device).map(Self::loaded)
    }

    /// See [`Folder::has_head`].
    fn has_head(&self, folder: &Folder, head: &str) -> bool {
        folder.has_head::<M>(&self.0, head)
    }

    /// See [`Folder::fresh_paths`].
    fn fresh_paths(&self, folder: &Folder) -> Vec<String> {
        folder.fresh_paths::<M>(&self.0)
    }

    /// See [`Folder::without_head`].
    fn without_head(&self, folder: Folder, head: &str) -> Folder {
        folder.without_head::<M>(&self.0, head)
    }

    /// See [`Folder::grown`].
    ///
    /// # Errors
    ///
    /// A file cannot be read.
    fn grown(&self, folder: &Folder) -> Result<Vec<(String, TensorData)>, PretrainedError> {
        folder.grown::<M>(&self.0)
    }

    /// See [`save`](pretrained::save).
    ///
    /// # Errors
    ///
    /// Those of [`save`](pretrained::save).
    fn save(&self, model: &AnyModel, folder: &Path) -> Result<(), PretrainedError> {
        pretrained::save(Self::model(model), &self.0, folder)
    }

    /// See [`load_adapters`](pretrained::load_adapters).
    ///
    /// # Errors
    ///
    /// Those of [`load_adapters`](pretrained::load_adapters).
    fn load_adapters(&self, folder: &Path) -> Result<Adapters, TrainError> {
        pretrained::load_adapters::<M>(&self.0, folder).map_err(TrainError::from)
    }

    /// See [`save_adapters`](pretrained::save_adapters).
    ///
    /// # Errors
    ///
    /// Those of [`save_adapters`](pretrained::save_adapters).
    fn save_adapters(
        &self,
        adapters: &Adapters,
        model: &AnyModel,
        base: &str,
        folder: &Path
    ) -> Result<(), TrainError> {
        pretrained::save_adapters(adapters, (Self::model(model), &self.0), base, folder)
    }

    /// See [`unsavable_adapter`](pretrained::unsavable_adapter).
    fn unsavable_adapter(&self, adapters: &Adapters, model: &AnyModel) -> Option<String> {
        pretrained::unsavable_adapter(adapters, Self::model(model), &self.0)
    }

    /// See [`Trainable::scoring`].
    fn scoring(&self, model: AnyModel, scores: WrittenScores) -> AnyModel {
        let model: M = model.into_inner().expect("the model has the type of the configuration");
        AnyModel::new::<M::Batch>(model.scoring(scores))
    }

    /// See [`Answers::answers`](crate::inference::Answers::answers).
    ///
    /// # Errors
    ///
    /// The tokenizer or the device fails.
    fn answers(
        &self,
        model: &AnyModel,
        questions: &[Question],
        inference: &Inference
    ) -> Result<Vec<Answer>, TrainError> {
        Self::model(model).answers(questions, inference)
    }
}
