//! Saves a model as a folder that transformers opens.

use std::collections::HashMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use burn::store::{FloatCastAdapter, ModuleAdapter, ModuleContext, ModuleSnapshot, SafetensorsStore};
use burn::tensor::DType;
use burn_pack::Tensor as StoredTensor;
use serde_json::Value;

use super::folder::{CONFIG, INDEX, WEIGHTS};
use super::key_map::Key;
use super::load::transposed;
use super::{KeyMap, Layout, Pretrained, PretrainedError};
use firebrick::saving::replace_or;

/// Writes `config.json` and `model.safetensors` into a folder and creates it if needed. transformers needs nothing
/// else except the tokenizer's files.
///
/// Weights are written in f32, one tensor at a time, under Hugging Face's names; a tied tensor is written once.
/// Unknown fields of `config.json` are written back as they were read; `architectures` and `dtype` are set for the
/// weights. Each file replaces an existing one atomically; the index of earlier weights in several files is removed.
///
/// # Errors
///
/// A file cannot be written, or the configuration requests something unsupported.
pub fn save<M: Pretrained>(
    model: &M,
    config: &M::Config,
    folder: impl AsRef<Path>,
) -> Result<(), PretrainedError> {
    let folder = folder.as_ref();
    M::check(config)?;
    fs::create_dir_all(folder).map_err(|error| PretrainedError::file(folder, "create it", error))?;
    let (weights, names) = (folder.join(WEIGHTS), names_of(&M::keys(config)));
    let write = |staged: &Path| {
        let mut store = SafetensorsStore::from_file(staged)
            .clear_metadata()
            .metadata("format", "pt")
            .overwrite(true)
            .with_to_adapter(ToFile(Arc::new(names)));
        let saved = model.save_into(&mut store);
        saved.map_err(|error| PretrainedError::file(&weights, "write the weights", error))
    };
    replace_or(&weights, write, |error| PretrainedError::file(&weights, "write the weights", error))?;
    match fs::remove_file(folder.join(INDEX)) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(PretrainedError::file(folder.join(INDEX), "remove it", error));
        }
        _ => {}
    }
    let (path, text) = (folder.join(CONFIG), config_text::<M>(config)?);
    let written = replace_or(&path, |staged| fs::write(staged, text), |error| error);
    written.map_err(|error| PretrainedError::file(&path, "write it", error))
}

/// Returns the text of a model's `config.json`.
///
/// # Errors
///
/// The configuration has a value that JSON lacks.
pub fn config_text<M: Pretrained>(config: &M::Config) -> Result<String, PretrainedError> {
    let failed = |error: serde_json::Error| PretrainedError::file(CONFIG, "write it", error.to_string());
    let mut written = serde_json::to_value(config).map_err(failed)?;
    if let Value::Object(fields) = &mut written {
        fields.insert("architectures".into(), vec![M::architecture(config)].into());
        fields.insert("dtype".into(), "float32".into());
        // Earlier versions of transformers read this field instead.
        if let Some(dtype) = fields.get_mut("torch_dtype") {
            *dtype = "float32".into();
        }
    }
    Ok(serde_json::to_string_pretty(&written).map_err(failed)? + "\n")
}

/// The name and layout in a file for each path of a model.
fn names_of(keys: &KeyMap) -> HashMap<String, (String, Layout)> {
    let named = |key: &Key| (key.path.clone(), (key.name.clone(), key.layout));
    keys.keys().iter().map(named).collect()
}

/// Converts parameters to Hugging Face's names and layouts.
#[derive(Clone)]
struct ToFile(Arc<HashMap<String, (String, Layout)>>);

impl ModuleAdapter for ToFile {
    fn adapt(&self, tensor: StoredTensor, context: ModuleContext<'_>) -> StoredTensor {
        let tensor = FloatCastAdapter::to(DType::F32).adapt(tensor, context);
        match self.0.get(&tensor.name) {
            Some((name, layout)) => {
                let mut tensor = transposed(tensor, *layout);
                tensor.name = name.clone();
                tensor
            }
            None => tensor,
        }
    }

    fn clone_box(&self) -> Box<dyn ModuleAdapter> {
        Box::new(self.clone())
    }
}
