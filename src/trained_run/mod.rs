//! A run that has been trained: evaluated on other data, asked about texts, and let write.
//!
//! ```text
//! mod.rs       where its weights and its run file are
//! evaluate.rs  loss and scores on any data of its task
//! predict.rs   answers to the records of a file
//! described.rs predictions and the page of a run
//! generate.rs  texts after prompts, or made of sources
//! shared.rs    a model that ranks share
//! ```

mod described;
mod evaluate;
mod generate;
mod predict;
mod shared;

use std::path::{Path, PathBuf};

use crate::console::tell;
use crate::models::pretrained::{Folder, PretrainedError};
use crate::run::{ModelConfig, PRETRAINED, Process, TaskConfig, TokenizerConfig, is_exported};
use crate::{Run, RunError};

pub(crate) use described::versions;
pub use evaluate::Evaluated;
pub use predict::Predicted;

/// A run that has been trained, with the Hugging Face folder of its weights.
///
/// ```no_run
/// use firebrick::{Paths, TrainedRun};
///
/// let trained = TrainedRun::open("runs/entities".as_ref(), None, &[""; 0])?;
/// let evaluated = trained.evaluate(Some(Paths::One("test.conll".into())), |doing| eprintln!("{doing}"))?;
/// println!("f1 {:.3}", evaluated.scores["f1"]);
/// # Ok::<(), firebrick::RunError>(())
/// ```
#[derive(Clone, Debug)]
pub struct TrainedRun {
    /// With the folder as its model, and the folder's tokenizer.
    run: Run,
    folder: PathBuf,
}

impl TrainedRun {
    /// Opens the output folder of a run, or the one that a run file names. `weights` is a Hugging Face folder to be
    /// used instead of the run's own, and `overrides` are those of [`Run::read`].
    ///
    /// # Errors
    ///
    /// There is no run file, it is not one, or there are no weights. The folder of a run that is in progress, or was
    /// killed, is made of its best weights, or of those of its newest checkpoint where none were evaluated.
    pub fn open(
        place: &Path,
        weights: Option<&Path>,
        overrides: &[impl AsRef<str>],
    ) -> Result<Self, RunError> {
        let (file, output) = match place.is_dir() {
            true => (place.join("run.ron"), Some(place)),
            false => (place.to_path_buf(), None),
        };
        let mut run = Run::read(&file, overrides)?;
        let folder = match weights {
            Some(weights) => weights.to_path_buf(),
            None => output.unwrap_or(&run.output).join(PRETRAINED),
        };
        let output = output.unwrap_or(&run.output).to_path_buf();
        if weights.is_none() && !is_exported(&output) {
            // A run that is in progress, or was killed, has its best weights and its checkpoints.
            // Of several processes none knows when another has made the folder.
            if !output.is_dir() || Process::this()?.of > 1 {
                return Err(RunError::NotTrained { folder });
            }
            let exported = run.export_saved(&output, None, &folder)?;
            tell(&format!(
                "{} of this run, as far as it has come, are in {}",
                exported.weights,
                folder.display()
            ));
        }
        run.model = ModelConfig::Pretrained(folder.clone());
        // Those that trained it: who uses it may have others.
        run.ranks = None;
        if folder.join("tokenizer.json").is_file() {
            run.data.tokenizer = TokenizerConfig::File(folder.clone());
        }
        Ok(Self { run, folder })
    }

    /// Where the weights are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The same on another device.
    pub fn on(mut self, device: impl Into<String>) -> Self {
        self.run.device = device.into();
        self
    }

    /// The same on so many ranks, which share the model when it [writes](Self::generate): threads of this process, or
    /// of each process that `mpirun` started. Default: 1, or one in each process.
    pub fn over(mut self, ranks: usize) -> Self {
        self.run.ranks = Some(ranks);
        self
    }

    /// The most tokens of a text that the run's evaluations write, where they write texts.
    pub(crate) fn written_tokens(&self) -> Option<usize> {
        match self.run.task {
            TaskConfig::Seq2Seq { generate, .. } => generate,
            _ => None,
        }
    }

    fn weights(&self) -> Result<Folder, PretrainedError> {
        Folder::open(&self.folder)
    }
}
