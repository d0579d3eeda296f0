//! A model of any type, for the commands.

use std::fmt::Debug;
use std::marker::PhantomData;

use firebrick_models::pretrained::{CLASSIFIER, Folder};

use super::Launched;
use super::launch::Launch;
use super::saved_weights::{Exported, Exporting};
use super::shapes::parameters;
use crate::RunError;
use crate::bench::{BenchReport, Benched};
use crate::plan::{Finding, FoundBatch, Plan, Planning};
use crate::trained_run::{Evaluated, Evaluating, Generating, Measured, Measuring, Predicted, Predicting};
use firebrick_models::family::{Family, Trainable};

/// A [`Trainable`] whose type is only known when the run file is read. Each command is a method.
///
/// `folder` holds the model's weights; a run with fresh weights has none.
pub(crate) trait AnyTrainable: Debug + Send + Sync {
    fn limits(&self, folder: &Folder) -> Result<Limits, RunError>;
    fn launch(&self, launch: Launch<'_>, folder: Option<Folder>) -> Result<Launched, RunError>;
    fn plan(&self, planning: Planning<'_>, folder: Option<Folder>) -> Result<Plan, RunError>;
    fn find_batch(&self, finding: Finding<'_>, folder: Option<Folder>) -> Result<FoundBatch, RunError>;
    fn bench(&self, benched: Benched<'_>, folder: Option<Folder>) -> Result<BenchReport, RunError>;
    fn export(&self, exporting: Exporting<'_>, described: &Folder) -> Result<Exported, RunError>;
    fn evaluate(&self, evaluating: Evaluating<'_>, folder: Folder) -> Result<Evaluated, RunError>;
    fn generate(&self, generating: Generating<'_>, folder: Folder) -> Result<(), RunError>;
    fn predict(&self, predicting: Predicting<'_>, folder: &Folder) -> Result<Predicted, RunError>;
    fn measure(&self, measuring: Measuring<'_>, folder: Folder) -> Result<Measured, RunError>;
}

/// What the model of a folder can read and tell apart.
#[derive(Debug)]
pub(crate) struct Limits {
    /// The most tokens of a row, if there is a limit.
    pub positions: Option<usize>,
    /// The labels of its classifier, if it has one.
    pub labels: Option<Vec<String>>,
    /// The number of its parameters.
    pub parameters: f64,
}

/// The type of a model, without a model.
#[derive(Debug)]
pub(super) struct Typed<M>(PhantomData<fn() -> M>);

impl<M> Default for Typed<M> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<M: Trainable> AnyTrainable for Typed<M> {
    fn limits(&self, folder: &Folder) -> Result<Limits, RunError> {
        let config = folder.config::<M::Config>()?;
        let labels = config.label_names().filter(|_| folder.has_head::<M>(&config, CLASSIFIER));
        Ok(Limits { positions: config.positions(), labels, parameters: parameters::<M>(&config) })
    }

    fn launch(&self, launch: Launch<'_>, folder: Option<Folder>) -> Result<Launched, RunError> {
        launch.with::<M>(folder)
    }

    fn plan(&self, planning: Planning<'_>, folder: Option<Folder>) -> Result<Plan, RunError> {
        planning.with::<M>(folder)
    }

    fn find_batch(&self, finding: Finding<'_>, folder: Option<Folder>) -> Result<FoundBatch, RunError> {
        finding.with::<M>(folder)
    }

    fn bench(&self, benched: Benched<'_>, folder: Option<Folder>) -> Result<BenchReport, RunError> {
        benched.with::<M>(folder)
    }

    fn export(&self, exporting: Exporting<'_>, described: &Folder) -> Result<Exported, RunError> {
        exporting.with::<M>(described)
    }

    fn evaluate(&self, evaluating: Evaluating<'_>, folder: Folder) -> Result<Evaluated, RunError> {
        evaluating.with::<M>(folder)
    }

    fn generate(&self, generating: Generating<'_>, folder: Folder) -> Result<(), RunError> {
        generating.with::<M>(folder)
    }

    fn predict(&self, predicting: Predicting<'_>, folder: &Folder) -> Result<Predicted, RunError> {
        predicting.with::<M>(folder)
    }

    fn measure(&self, measuring: Measuring<'_>, folder: Folder) -> Result<Measured, RunError> {
        measuring.with::<M>(folder)
    }
}
