//! A trained run: evaluation on other data, predictions and text generation.
//!
//! ```text
//! mod.rs       opening a run
//! evaluate.rs  loss and scores on data of its task
//! predict.rs   predictions for the records of a file
//! described.rs the predictions and the report page of a run
//! generate.rs  texts from prompts or sources, also with a model that ranks share
//! incoming.rs  lines that come while others are answered
//! measure/     perplexity of long texts, multiple choice, and scores of written texts
//! ```

mod described;
mod evaluate;
mod generate;
mod incoming;
mod measure;
mod predict;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::console::tell;
use crate::hub::{FileSet, local_folder};
use crate::run::{ModelConfig, PRETRAINED, Process, Registries, is_exported};
use crate::{Run, RunError};
use firebrick_models::pretrained::{Folder, PretrainedError};
use firebrick_tasks::TokenizerConfig;

pub(crate) use described::versions;
pub use evaluate::Evaluated;
pub(crate) use generate::TEXTS;
pub use measure::{Measure, Measured};
pub(crate) use predict::PREDICTIONS;
pub use predict::Predicted;

/// A trained run, with the Hugging Face folder of its weights.
///
/// ```no_run
/// use firebrick_cli::{Paths, TrainedRun};
///
/// let trained = TrainedRun::open("runs/entities".as_ref(), None, &[""; 0])?;
/// let evaluated = trained.evaluate(Some(Paths::One("test.conll".into())), |doing| eprintln!("{doing}"))?;
/// println!("f1 {:.3}", evaluated.scores["f1"]);
/// # Ok::<(), firebrick_cli::RunError>(())
/// ```
#[derive(Clone, Debug)]
pub struct TrainedRun {
    /// The run, with the folder as its model, and the folder's tokenizer.
    run: Run,
    /// Whether the run started from a folder's weights.
    from_folder: bool,
    /// Its output folder.
    output: PathBuf,
    folder: PathBuf,
    raw: bool,
    system: Option<String>,
}

impl TrainedRun {
    /// Opens a run by its output folder, or by a run file that names that folder. `weights` is a Hugging Face folder,
    /// or a model on the Hub, to use instead of the run's own. For `overrides`, see [`Run::read`].
    ///
    /// If the run is in progress or was killed, this makes its Hugging Face folder from its best weights, or from
    /// those of its newest checkpoint if none were evaluated.
    ///
    /// # Errors
    ///
    /// There is no valid run file, there are no weights, or an override names another tokenizer than theirs.
    pub fn open(
        place: &Path,
        weights: Option<&Path>,
        overrides: &[impl AsRef<str>],
    ) -> Result<Self, RunError> {
        Self::open_with(Registries::built_in(), place, weights, overrides)
    }

    pub(crate) fn open_with(
        registries: &Arc<Registries>,
        place: &Path,
        weights: Option<&Path>,
        overrides: &[impl AsRef<str>],
    ) -> Result<Self, RunError> {
        let (file, output) = match place.is_dir() {
            true => (place.join("run.ron"), Some(place)),
            false => (place.to_path_buf(), None),
        };
        if !file.is_file() {
            return Err(RunError::NoRun(place.into()));
        }
        let mut run = Run::read_with(registries, &file, overrides)?;
        let folder = match weights {
            Some(weights) => local_folder(weights, FileSet::Model, &tell)?.into_owned(),
            None => output.unwrap_or(&run.output).join(PRETRAINED),
        };
        let output = output.unwrap_or(&run.output).to_path_buf();
        if weights.is_none() && !is_exported(&output) {
            // A run that is in progress, or was killed, has its best weights and its checkpoints. With several
            // processes, none knows when another has made the folder.
            if !output.is_dir() || Process::this()?.of > 1 {
                return Err(RunError::NotTrained(folder));
            }
            let exported = run.export_saved(&output, None, &folder)?;
            tell(&format!("{} of this unfinished run are in {}", exported.weights, folder.display()));
        }
        let from_folder = run.model.folder().is_some();
        run.model = ModelConfig::pretrained(&folder);
        // These are the ranks of training; their number may differ now.
        run.ranks = None;
        if folder.join("tokenizer.json").is_file() {
            if overrides.iter().any(|one| one.as_ref().trim_start().starts_with("data.tokenizer")) {
                return Err(RunError::TrainedTokenizer(folder));
            }
            run.data.tokenizer = TokenizerConfig::File(folder.clone());
        }
        Ok(Self { run, from_folder, output, folder, raw: false, system: None })
    }

    /// The Hugging Face folder of the weights.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Selects another device.
    pub fn on(mut self, device: impl Into<String>) -> Self {
        self.run.device = device.into();
        self
    }

    /// Sets the number of ranks, which share the model when it [generates text](Self::generate): threads of this
    /// process, or of each process that `mpirun` started. Default: 1, or one per process.
    pub fn over(mut self, ranks: usize) -> Self {
        self.run.ranks = Some(ranks);
        self
    }

    /// Sets whether a model that was trained on conversations continues prompts as they are, with the special tokens
    /// written in them, instead of answering them. Default: no.
    pub fn raw(mut self, raw: bool) -> Self {
        self.raw = raw;
        self
    }

    /// Sets the system's message before each prompt that the model answers. Default: none.
    pub fn system(mut self, text: Option<String>) -> Self {
        self.system = text;
        self
    }

    /// The maximum number of tokens of texts generated in the run's evaluations, if they generate texts.
    pub(crate) fn written_tokens(&self) -> Option<usize> {
        self.run.task.evaluated_tokens()
    }

    fn weights(&self) -> Result<Folder, PretrainedError> {
        Folder::open(&self.folder)
    }
}
