//! Exports the saved weights of a run as a Hugging Face folder, whether the run is in progress, was killed, or is over.

use std::fs;
use std::path::{Path, PathBuf};

use firebrick_checkpoints::{Checkpoint, Consolidate, What, consolidate};
use firebrick_datasets::Tokenizer;
use firebrick_tasks::TokenizerConfig;

use super::Run;
use super::export::{known_by, mark, read, save_beside, write_whole};
use crate::RunError;
use crate::console::tell;
use crate::hub::{FileSet, HubError, local_folder};
use firebrick::ResumeError;
use firebrick::checkpoint::best::BEST;
use firebrick::{Resume, TrainError};
use firebrick_models::AnyConfig;
use firebrick_models::pretrained::Folder;

/// What the export lacks if the folder of the model that the run started from is missing.
const NOT_COPIED: &str =
    "the export is without the model's generation_config.json and the files beside tokenizer.json";

/// Weights exported as a Hugging Face folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exported {
    /// The folder.
    pub folder: PathBuf,
    /// A description of the weights.
    pub weights: String,
}

impl Run {
    /// Exports weights of the run in an output folder as a Hugging Face folder: those of the checkpoint of `step`,
    /// otherwise the best ones, or those of the newest checkpoint if none were evaluated. If the run averages its
    /// weights, the average is exported, because that is what was evaluated.
    ///
    /// # Errors
    ///
    /// Nothing is saved, there is no such checkpoint, the checkpoint is damaged, or the folder cannot be written.
    pub(crate) fn export_saved(
        &self,
        output: &Path,
        step: Option<u64>,
        folder: &Path,
    ) -> Result<Exported, RunError> {
        let best = output.join(BEST);
        let weights = match step {
            None if best.is_file() => Weights::Best(best),
            _ => {
                let resume = step.map_or(Resume::Latest, Resume::Step);
                let found = resume.find(output).map_err(|error| match error {
                    ResumeError::NoCheckpoint { .. } => RunError::NothingSaved(output.into()),
                    error => TrainError::from(error).into(),
                })?;
                let path = found.ok_or_else(|| RunError::NothingSaved(output.into()))?;
                Weights::Saved(Box::new(Checkpoint::open(path).map_err(saved)?))
            }
        };
        let described = Folder::without_weights(output)?;
        let config = self.model_in(&described)?.config_in(&described)?;
        let mut exported = String::new();
        // It is made first, so that one that cannot be written is found before the weights are read.
        write_whole(folder, |folder| {
            exported = write(self, output, &weights, &config, folder)?;
            Ok(())
        })?;
        Ok(Exported { folder: folder.into(), weights: exported })
    }
}

enum Weights {
    Best(PathBuf),
    Saved(Box<Checkpoint>),
}

/// Writes weights with all that a Hugging Face folder has beside them, and returns what they are.
fn write(
    run: &Run,
    output: &Path,
    weights: &Weights,
    config: &AnyConfig,
    folder: &Path,
) -> Result<String, RunError> {
    // Taken before the weights are read, because a run in progress may replace them.
    let best = match weights {
        Weights::Best(file) => known_by(file),
        Weights::Saved(_) => None,
    };
    let (model, of) = match weights {
        Weights::Best(file) => (read(config, file)?, "the best weights".into()),
        Weights::Saved(checkpoint) => {
            let (what, name) = match checkpoint.average() {
                Some(_) => (What::Average, "the averaged weights"),
                None => (What::Parameters, "the weights"),
            };
            let file = folder.join(".weights.safetensors");
            let options = Consolidate { with_aliases: true, ..Consolidate::default() };
            let model = consolidate(checkpoint, what, &file, &options, |_, _| ())
                .map_err(saved)
                .and_then(|_| read(config, &file));
            // The model has the numbers now.
            let _ = fs::remove_file(&file);
            (model?, format!("{name} of step {}", checkpoint.manifest().step))
        }
    };
    config.save(&model, folder)?;
    let tokenizer = Tokenizer::from_file(output.join("tokenizer.json"))?;
    let tokenizer = match run.data.tokenizer {
        TokenizerConfig::File(_) => tokenizer,
        TokenizerConfig::Characters | TokenizerConfig::Bpe { .. } => {
            tokenizer.with_only_special(run.data.special.clone())?
        }
    };
    let origin = run.model.folder().and_then(|origin| {
        let found = local_folder(origin, FileSet::Beside, &tell);
        let warn = |error: &HubError| tell(&format!("warning: {error}; {NOT_COPIED}"));
        found.inspect_err(warn).ok()
    });
    save_beside(folder, origin.as_deref(), config, &tokenizer, run.end_of_turn(&tokenizer))?;
    mark(folder, best)?;
    Ok(of)
}

fn saved(error: firebrick_checkpoints::CheckpointError) -> RunError {
    TrainError::from(ResumeError::from(error)).into()
}
