//! The command `push`: a trained model as a repository on the Hugging Face Hub.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;

use crate::console::{print, tell};
use crate::run::Registries;
use crate::{RunError, TrainedRun};

const EXAMPLES: &str = "\
Examples:
  HF_TOKEN=hf_... firebrick push runs/entities org/entities
  firebrick push runs/entities org/entities@trial --private --message 'After 3 epochs'
  firebrick push runs/entities/pretrained org/entities

The token must be one that may write. Another run starts from the model with `model: Pretrained(\"hub:org/entities\")`,
and transformers with `from_pretrained(\"org/entities\")`. HF_ENDPOINT names another Hub.";

/// `firebrick push`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PushArgs {
    /// The output folder of a run, whose best weights are pushed, or a Hugging Face folder.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The repository, as in `org/name`, and perhaps its branch, as in `org/name@branch`. Both are created if they do not
    /// exist.
    #[arg(value_name = "ORG/NAME")]
    repository: String,
    /// Creates the repository as a private one. One that exists stays as it is.
    #[arg(long)]
    private: bool,
    /// The message of the commit.
    #[arg(long, value_name = "TEXT", default_value = "Push a model trained with Firebrick")]
    message: String,
}

/// Runs `firebrick push`.
pub(crate) fn push(args: &PushArgs, registries: &Arc<Registries>) -> Result<(), RunError> {
    let folder = model_in(&args.run, registries)?;
    tell(&format!("pushing {} to {}", folder.display(), args.repository));
    print(&format!("pushed to {}\n", commit(args, folder)?));
    Ok(())
}

/// Returns the Hugging Face folder of a run, or the folder itself if it is one.
fn model_in(place: &Path, registries: &Arc<Registries>) -> Result<PathBuf, RunError> {
    let is_run = place.join("run.ron").is_file() || !place.join("config.json").is_file();
    Ok(match is_run {
        true => TrainedRun::open_with(registries, place, None, &[""; 0])?.folder().to_path_buf(),
        false => place.to_path_buf(),
    })
}

#[cfg(feature = "hub")]
fn commit(args: &PushArgs, folder: PathBuf) -> Result<String, RunError> {
    let PushArgs { repository, private, message, .. } = args;
    let (repository, message) = (repository.clone(), message.clone());
    let push = crate::hub::Push { folder, repository, message, is_private: *private };
    Ok(push.push(&tell)?)
}

#[cfg(not(feature = "hub"))]
fn commit(args: &PushArgs, folder: PathBuf) -> Result<String, RunError> {
    let instead = format!("push the folder with `hf upload {} {}`", args.repository, folder.display());
    Err(crate::HubError::NotBuilt { instead }.into())
}
