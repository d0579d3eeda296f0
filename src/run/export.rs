//! The Hugging Face folder that a run leaves.

use std::fs;
use std::path::{Path, PathBuf};

use burn::store::{ModuleSnapshot, SafetensorsStore};
use burn::tensor::Device;
use firebrick_datasets::{ForModel, Tokenizer};

use super::RunError;
use super::family::Family;
use super::prepare::Parts;
use super::trainable::Trainable;
use crate::models::pretrained;
use crate::{TrainError, Trained, saving};

/// Its name in the output folder.
pub(crate) const PRETRAINED: &str = "pretrained";

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
    match &trained.best {
        Some(best) => pretrained::save(&read::<M>(&parts.config, best)?, &parts.config, &folder)?,
        None => {
            let last = trained.averaged.as_ref().unwrap_or(&trained.model);
            pretrained::save(last, &parts.config, &folder)?;
        }
    }
    if let Some(source) = &parts.folder {
        copy(GENERATION, source.path(), &folder)?;
        if is_of(&parts.tokenizer, source.path()) {
            BESIDE.iter().try_for_each(|name| copy(name, source.path(), &folder))?;
        }
    }
    let model =
        ForModel { max_length: parts.config.positions(), segments: <M::Config as Family>::reads_segments() };
    parts.tokenizer.save_for_model(&folder, &model)?;
    Ok(folder)
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
fn read<M: Trainable>(config: &M::Config, file: &Path) -> Result<M, RunError> {
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
