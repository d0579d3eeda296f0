//! The Hugging Face folder of a trained run.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use burn::store::{ModuleSnapshot, SafetensorsStore};
use burn::tensor::Device;
use firebrick_datasets::{ForModel, Tokenizer};
use serde_json::{Map, Value};

use super::prepare::Parts;
use crate::RunError;
use firebrick::checkpoint::best::BEST;
use firebrick::saving;
use firebrick::{AnyModel, TrainError, Trained};
use firebrick_models::AnyConfig;
use firebrick_models::pretrained::{CONFIG, Folder};

/// The folder's name in the output folder.
pub(crate) const PRETRAINED: &str = "pretrained";

/// The file in the folder that records which weights it was made from.
const MADE_OF: &str = ".made_of";

/// The file that says which of several files has which weights.
const INDEX: &str = "model.safetensors.index.json";

/// The generation settings of `transformers`.
const GENERATION: &str = "generation_config.json";

/// The files that tokenizers of other libraries keep beside `tokenizer.json`.
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

/// Writes the best weights, or the last ones if none were evaluated, with everything else that `transformers` needs.
pub(super) fn export(
    trained: &Trained<AnyModel>,
    parts: &Parts,
    output: &Path,
    end_of_turn: Option<u32>,
) -> Result<PathBuf, RunError> {
    let folder = output.join(PRETRAINED);
    let last_is_best = trained.report.best_step == Some(trained.report.steps);
    write_whole(&folder, |folder| {
        let of = trained.best.as_deref().and_then(known_by);
        match &trained.best {
            Some(best) if !last_is_best => {
                parts.config.save(&read(&parts.config, best)?, folder)?;
            }
            _ => {
                let last = trained.averaged.as_ref().unwrap_or(&trained.model);
                parts.config.save(last, folder)?;
            }
        }
        let origin = parts.folder.as_ref().map(|folder| folder.path());
        save_beside(folder, origin, &parts.config, &parts.tokenizer, end_of_turn)?;
        mark(folder, of)
    })?;
    Ok(folder)
}

/// Writes a Hugging Face folder, so that it is there as a whole or as it was before. `write` gets the folder to write
/// into.
pub(super) fn write_whole(
    folder: &Path,
    write: impl FnOnce(&Path) -> Result<(), RunError>,
) -> Result<(), RunError> {
    let failed = |error| RunError::from(TrainError::file(folder, "making the folder", error));
    saving::replace_folder(folder, write, failed)?;
    // Weights in several files, which those in one have replaced.
    match fs::remove_file(folder.join(INDEX)) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(TrainError::file(folder.join(INDEX), "removing it", error).into())
        }
        _ => Ok(()),
    }
}

/// Writes what `transformers` needs besides the weights and configuration of a model. `origin` is the folder of the
/// model that the run started from, and `end_of_turn` the token that ends an answer of a model that was trained on
/// conversations.
pub(super) fn save_beside(
    folder: &Path,
    origin: Option<&Path>,
    config: &AnyConfig,
    tokenizer: &Tokenizer,
    end_of_turn: Option<u32>,
) -> Result<(), RunError> {
    if let Some(origin) = origin {
        copy(GENERATION, origin, folder)?;
        keep_start(folder)?;
    }
    save_tokenizer(folder, origin, config, tokenizer)?;
    end_of_turn.map_or(Ok(()), |end| end_texts_at(end, folder))
}

/// Writes the files of a tokenizer.
pub(super) fn save_tokenizer(
    folder: &Path,
    origin: Option<&Path>,
    config: &AnyConfig,
    tokenizer: &Tokenizer,
) -> Result<(), RunError> {
    if let Some(origin) = origin.filter(|origin| is_of(tokenizer, origin)) {
        BESIDE.iter().try_for_each(|name| copy(name, origin, folder))?;
    }
    let model = ForModel { max_length: config.positions(), segments: config.reads_segments() };
    Ok(tokenizer.save_for_model(folder, &model)?)
}

/// Records in a folder which best weights it was made from, by the [stamp](known_by) taken before they were read, or
/// records none.
pub(super) fn mark(folder: &Path, of: Option<String>) -> Result<(), RunError> {
    Ok(saving::save_text(&of.unwrap_or_default(), &folder.join(MADE_OF))?)
}

/// Whether an output folder has the Hugging Face folder of its current best weights. A run that was resumed after its
/// end and then killed still has the folder of its first end. Folders of older versions have no record and are
/// accepted.
pub(crate) fn is_exported(output: &Path) -> bool {
    let folder = output.join(PRETRAINED);
    let (made_of, best) = (fs::read_to_string(folder.join(MADE_OF)), known_by(&output.join(BEST)));
    match (made_of, best) {
        (Ok(made_of), Some(best)) => made_of == best,
        _ => folder.is_dir(),
    }
}

/// Returns a stamp that identifies a file of weights without reading it: its size and modification time.
pub(super) fn known_by(weights: &Path) -> Option<String> {
    let metadata = fs::metadata(weights).ok()?;
    let written = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(format!("{} bytes, of {} ns\n", metadata.len(), written.as_nanos()))
}

/// Makes texts begin with the token that the model was trained from: `config.json` says it, and what
/// `generation_config.json` says goes before that when `transformers` generates.
fn keep_start(folder: &Path) -> Result<(), TrainError> {
    const START: &str = "decoder_start_token_id";
    let read = |name: &str| serde_json::from_slice::<Value>(&fs::read(folder.join(name)).ok()?).ok();
    let (Some(config), Some(mut generation)) = (read(CONFIG), read(GENERATION)) else { return Ok(()) };
    match (config.get(START), generation.get_mut(START)) {
        (Some(trained), Some(start)) if start != trained => *start = trained.clone(),
        _ => return Ok(()),
    }
    saving::save_text(&format!("{generation:#}\n"), &folder.join(GENERATION))
}

/// Makes texts that `transformers` generates from a folder end at one more token.
fn end_texts_at(end: u32, folder: &Path) -> Result<(), RunError> {
    const END: &str = "eos_token_id";
    let mut ends = Folder::open(folder)?.end_tokens()?;
    if ends.contains(&end) {
        return Ok(());
    }
    ends.push(end);
    let path = folder.join(GENERATION);
    let mut generation = match path.is_file() {
        true => fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default(),
        false => Map::new(),
    };
    let ends = if ends.len() == 1 { Value::from(end) } else { ends.into() };
    generation.insert(END.to_owned(), ends);
    Ok(saving::save_text(&format!("{:#}\n", Value::from(generation)), &path)?)
}

/// Copies a file of a folder, if it exists.
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

/// Whether a tokenizer is the one in a folder. The files beside a different tokenizer do not describe this one.
fn is_of(tokenizer: &Tokenizer, folder: &Path) -> bool {
    let of_folder = Tokenizer::from_file(folder).and_then(|tokenizer| tokenizer.fingerprint());
    of_folder.is_ok_and(|of_folder| tokenizer.fingerprint().is_ok_and(|own| own == of_folder))
}

/// Reads a model on the host from a file of weights by module path.
pub(super) fn read(config: &AnyConfig, file: &Path) -> Result<AnyModel, RunError> {
    let mut model = config.init(&Device::flex());
    let mut store = SafetensorsStore::from_file(file);
    let read = model.load_from(&mut store);
    match read.map_err(|error| TrainError::file(file, "reading the weights", error))?.missing.first() {
        None => Ok(model),
        Some((path, _)) => {
            Err(TrainError::file(file, "reading the weights", format!("`{path}` is missing")).into())
        }
    }
}
