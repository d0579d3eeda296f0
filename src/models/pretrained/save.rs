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
use crate::saving::replace_or;

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
    save_config::<M>(config, folder)
}

/// Writes only `config.json` into an existing folder.
///
/// # Errors
///
/// The file cannot be written.
pub(crate) fn save_config<M: Pretrained>(config: &M::Config, folder: &Path) -> Result<(), PretrainedError> {
    write_config(config, M::architecture(config), &folder.join(CONFIG))
}

fn write_config(
    config: &impl serde::Serialize,
    architecture: &str,
    path: &Path,
) -> Result<(), PretrainedError> {
    let failed = |error: &dyn ToString| PretrainedError::file(path, "write it", error.to_string());
    let mut config = serde_json::to_value(config).map_err(|error| failed(&error))?;
    if let Value::Object(fields) = &mut config {
        fields.insert("architectures".into(), vec![architecture].into());
        fields.insert("dtype".into(), "float32".into());
        // Earlier versions of transformers read this field instead.
        if let Some(dtype) = fields.get_mut("torch_dtype") {
            *dtype = "float32".into();
        }
    }
    let text = serde_json::to_string_pretty(&config).map_err(|error| failed(&error))? + "\n";
    let written = replace_or(path, |staged| fs::write(staged, text), |error| error);
    written.map_err(|error| failed(&error))
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
