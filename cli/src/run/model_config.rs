//! The model in a run file: a fresh one by its shape, or a Hugging Face folder.

use std::any::Any;
use std::fmt::{self, Debug, Formatter};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use firebrick_datasets::SpecialTokens;
use firebrick_strategies::SettingError;
use firebrick_strategies::registry::Named;
use serde::{Deserialize, Serialize};

use super::extensions;

use firebrick_models::family::{Family, Sizes};
use firebrick_models::{AnyConfig, ModelType};

/// The model, one of the registered [families](super::Families). The task determines its head.
///
/// | Task | `Gpt` | `Llama` | `Bert` | `ModernBert` | `T5` | `Bart` |
/// |---|---|---|---|---|---|---|
/// | `CausalLm`, `Dpo` | yes | yes | | | | |
/// | `MaskedLm`, `TokenClassification`, `SequenceClassification` | | | yes | yes | | |
/// | `Seq2Seq` | | | | | yes | yes |
///
/// These have fresh weights. The vocabulary size comes from the tokenizer, and the number of positions from the longest
/// row. `Pretrained("folder")` has the weights of a Hugging Face folder, of any family in
/// [`pretrained`](firebrick_models::pretrained); `Pretrained("hub:org/name@revision")` those of the Hugging Face Hub. A head
/// that the folder lacks is initialized.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ModelConfig(Named<dyn AnyShape>);

impl ModelConfig {
    /// Creates the entry of a fresh model, of a family that is [registered](super::Families) by this name.
    pub fn fresh<C: Family>(name: &'static str, shape: C::Shape) -> Self {
        Self(named::<C>(name, shape))
    }

    /// Creates the entry of a Hugging Face folder.
    pub fn pretrained(folder: impl Into<PathBuf>) -> Self {
        Self(FromFolder::named("Pretrained", FromFolder(folder.into())))
    }

    /// Reads an entry of a run file, if it is valid.
    pub(crate) fn parse(entry: &str) -> Option<Self> {
        let options = ron::Options::default().with_default_extension(extensions());
        let config: Self = options.from_str(entry).ok()?;
        config.check().is_ok().then_some(config)
    }

    /// Returns the name of the family in a run file.
    pub(crate) fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Returns the folder of the weights, unless they are fresh.
    pub(crate) fn folder(&self) -> Option<&Path> {
        self.0.folder()
    }

    /// Returns the configuration of fresh weights, if the model is of this type.
    pub(super) fn config(&self, of: ModelType, sizes: Sizes<'_>) -> Option<AnyConfig> {
        of.config_of(self.0.config(sizes)?)
    }

    /// Checks the ranges of the settings.
    pub(super) fn check(&self) -> Result<(), SettingError> {
        self.0.check()
    }

    /// Returns whether the model is fresh and limits the positions of a row.
    pub(super) fn limits_positions(&self) -> bool {
        self.0.limits_positions()
    }

    /// Returns the settings that a resumed run may change.
    pub(super) fn changeable(&self) -> &'static [&'static str] {
        self.0.changeable()
    }
}

/// Prints the shape.
impl Debug for ModelConfig {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}({:?})", self.name(), self.0)
    }
}

/// The [shape](Family::Shape) of a model of any family, or a folder.
pub(crate) trait AnyShape: Send + Sync {
    fn check(&self) -> Result<(), SettingError>;

    /// Returns the family's configuration of fresh weights; a folder has none.
    fn config(&self, sizes: Sizes<'_>) -> Option<Box<dyn Any>>;

    /// Whether a fresh model limits the positions of a row.
    fn limits_positions(&self) -> bool;

    fn changeable(&self) -> &'static [&'static str];

    fn folder(&self) -> Option<&Path> {
        None
    }
}

/// Names a shape of the family `C`.
pub(super) fn named<C: Family>(name: &'static str, shape: C::Shape) -> Named<dyn AnyShape> {
    let shape = Arc::new(shape);
    Named::of(name, Arc::new(ShapeOf::<C>(shape.clone())), shape)
}

struct ShapeOf<C: Family>(Arc<C::Shape>);

impl<C: Family> AnyShape for ShapeOf<C> {
    fn check(&self) -> Result<(), SettingError> {
        C::check_shape(&self.0)
    }

    fn config(&self, sizes: Sizes<'_>) -> Option<Box<dyn Any>> {
        Some(Box::new(C::fresh(&self.0, sizes)))
    }

    fn limits_positions(&self) -> bool {
        let special = SpecialTokens::default();
        C::fresh(&self.0, Sizes { vocabulary: 1, positions: 1, special: &special }).positions().is_some()
    }

    fn changeable(&self) -> &'static [&'static str] {
        C::CHANGEABLE
    }
}

/// The weights of a Hugging Face folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct FromFolder(PathBuf);

impl FromFolder {
    pub fn named(name: &'static str, folder: Self) -> Named<dyn AnyShape> {
        let folder = Arc::new(folder);
        Named::of(name, folder.clone(), folder)
    }
}

impl AnyShape for FromFolder {
    fn check(&self) -> Result<(), SettingError> {
        let is_given = !self.0.as_os_str().is_empty();
        SettingError::require(is_given, "Pretrained", "a folder", "\"\"")
    }

    fn config(&self, _: Sizes<'_>) -> Option<Box<dyn Any>> {
        None
    }

    fn limits_positions(&self) -> bool {
        false
    }

    fn changeable(&self) -> &'static [&'static str] {
        &[]
    }

    fn folder(&self) -> Option<&Path> {
        Some(&self.0)
    }
}
