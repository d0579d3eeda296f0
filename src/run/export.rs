//! The Hugging Face folder that a run leaves.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use burn::store::{ModuleSnapshot, SafetensorsStore};
use burn::tensor::Device;
use firebrick_datasets::{ForModel, Tokenizer};

use super::RunError;
use super::family::Family;
use super::prepare::Parts;
use super::trainable::Trainable;
use crate::models::pretrained;
use crate::output::BEST;
use crate::{TrainError, Trained, saving};

/// Its name in the output folder.
pub(crate) const PRETRAINED: &str = "pretrained";

/// The file in it that tells of which weights it was made.
const MADE_OF: &str = ".made_of";

/// How texts are generated.
const GENERATION: &str = "generation_config.json";

/// What a tokenizer of another library has beside its `tokenizer.json`.
const BESIDE: [&str; 9] = [
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "chat_template.jinja",
];

/// Writes the best weights, or the last where none were evaluated, with what `transformers` needs besides.
pub(super) fn export<M: Trainable>(
    trained: &Trained<M>,
    parts: &Parts<M>,
    output: &Path,
) -> Result<PathBuf, RunError> {
    let folder = output.join(PRETRAINED);
    let of = trained.best.as_deref().and_then(known_by);
    match &trained.best {
        Some(best) => pretrained::save(&read::<M>(&parts.config, best)?, &parts.config, &folder)?,
        None => {
            let last = trained.averaged.as_ref().unwrap_or(&trained.model);
            pretrained::save(last, &parts.config, &folder)?;
        }
    }
    let origin = parts.folder.as_ref().map(|folder| folder.path());
    save_beside::<M>(&folder, origin, &parts.config, &parts.tokenizer)?;
    mark(&folder, of)?;
    Ok(folder)
}

/// Writes what `transformers` needs beside a model's weights and its configuration. `origin` is the folder of the model
/// that the run started from.
pub(super) fn save_beside<M: Trainable>(
    folder: &Path,
    origin: Option<&Path>,
    config: &M::Config,
    tokenizer: &Tokenizer,
) -> Result<(), RunError> {
    if let Some(origin) = origin {
        copy(GENERATION, origin, folder)?;
        if is_of(tokenizer, origin) {
            BESIDE.iter().try_for_each(|name| copy(name, origin, folder))?;
        }
    }
    let model =
        ForModel { max_length: config.positions(), segments: <M::Config as Family>::reads_segments() };
    Ok(tokenizer.save_for_model(folder, &model)?)
}

/// Marks a folder with what the best weights were [known by](known_by) that it was made of, before they were read; or with
/// none.
pub(super) fn mark(folder: &Path, of: Option<String>) -> Result<(), RunError> {
    Ok(saving::save_text(&of.unwrap_or_default(), &folder.join(MADE_OF))?)
}

/// Whether an output folder has the Hugging Face folder of its best weights: a run that went on after it had ended, and
/// was killed, has that of its first end. One of an older version is not marked.
pub(crate) fn is_exported(output: &Path) -> bool {
    let folder = output.join(PRETRAINED);
    let (made_of, best) = (fs::read_to_string(folder.join(MADE_OF)), known_by(&output.join(BEST)));
    match (made_of, best) {
        (Ok(made_of), Some(best)) => made_of == best,
        _ => folder.is_dir(),
    }
}

/// What a file of weights is known by without reading it.
pub(super) fn known_by(weights: &Path) -> Option<String> {
    let metadata = fs::metadata(weights).ok()?;
    let written = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(format!("{} bytes, of {} ns\n", metadata.len(), written.as_nanos()))
}

/// Copies a file of a folder, if it is there.
fn copy(name: &str, from: &Path, to: &Path) -> Result<(), TrainError> {
    let (source, target) = (from.join(name), to.join(name));
    if !source.is_file() {
        return Ok(());
    }
    saving::replace(&target, |staged| {
        let copied = fs::copy(&source, staged);
        copied.map(drop).map_err(|error| TrainError::file(&target, "copying it", error))
    })
}

/// Whether a tokenizer is that of a folder. The files beside another one say nothing of it.
fn is_of(tokenizer: &Tokenizer, folder: &Path) -> bool {
    let of_folder = Tokenizer::from_file(folder).and_then(|tokenizer| tokenizer.fingerprint());
    of_folder.is_ok_and(|of_folder| tokenizer.fingerprint().is_ok_and(|own| own == of_folder))
}

/// A model out of a file of weights by module path, on the host.
pub(super) fn read<M: Trainable>(config: &M::Config, file: &Path) -> Result<M, RunError> {
    let mut model = M::init(config, &Device::flex());
    let mut store = SafetensorsStore::from_file(file);
    let read = model.load_from(&mut store);
    match read.map_err(|error| TrainError::file(file, "reading the weights", error))?.missing.first() {
        None => Ok(model),
        Some((path, _)) => {
            Err(TrainError::file(file, "reading the weights", format!("`{path}` is missing")).into())
        }
    }
}
