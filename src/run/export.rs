//! The Hugging Face folder that a run leaves.

use std::fs;
use std::path::{Path, PathBuf};

use burn::store::{ModuleSnapshot, SafetensorsStore};
use burn::tensor::Device;

use super::RunError;
use super::prepare::Parts;
use super::trainable::Trainable;
use crate::models::pretrained;
use crate::{TrainError, Trained, saving};

/// Its name in the output folder.
pub(crate) const PRETRAINED: &str = "pretrained";

/// What a tokenizer of another library has beside its `tokenizer.json`, and how texts are generated.
const BESIDE: [&str; 10] = [
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "generation_config.json",
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
    for name in BESIDE {
        let Some(source) = parts.folder.as_ref().map(|folder| folder.path().join(name)) else { break };
        if source.is_file() {
            let target = folder.join(name);
            saving::replace(&target, |staged| {
                let copied = fs::copy(&source, staged);
                copied.map(drop).map_err(|error| TrainError::file(&target, "copying it", error))
            })?;
        }
    }
    parts.tokenizer.save(folder.join("tokenizer.json"))?;
    Ok(folder)
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
