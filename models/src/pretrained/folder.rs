//! A Hugging Face folder: its configuration and its tensors by name.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use burn::store::{ModuleStore, SafetensorsStore};
use burn::tensor::DType;
use burn_pack::Tensor as StoredTensor;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::fields::token_of_class;
use super::growth::Growth;
use super::{HubConfig, PretrainedError};

/// The file of a model's configuration in a Hugging Face folder.
pub const CONFIG: &str = "config.json";
pub(super) const WEIGHTS: &str = "model.safetensors";
pub(super) const INDEX: &str = "model.safetensors.index.json";
/// transformers' settings for generating text.
const GENERATION: &str = "generation_config.json";
const END: &str = "eos_token_id";
const FORCED_FIRST: &str = "forced_bos_token_id";
const FORCED_LAST: &str = "forced_eos_token_id";
/// The maximum size of a JSON file in bytes; the index of a very large model has several million.
const MOST_JSON: u64 = 64 << 20;

/// A folder in the format of transformers' `save_pretrained`: `config.json`, and `model.safetensors` or several files
/// with `model.safetensors.index.json`.
///
/// Opening it reads the headers of the files; a tensor's values are read when a model takes them.
pub struct Folder {
    path: PathBuf,
    config: Map<String, Value>,
    tensors: BTreeMap<String, StoredTensor>,
    growth: Option<Growth>,
    /// Whether it stands for a folder with weights that are elsewhere.
    is_without_weights: bool,
    /// The heads that are as if no file contained them.
    left_out: BTreeSet<String>,
}

impl Folder {
    /// Opens a folder.
    ///
    /// # Errors
    ///
    /// The folder does not exist; a file is missing, is not JSON, or is not safetensors; the index names a file
    /// outside of the folder, or a tensor that is not in the file it names.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, PretrainedError> {
        let path = path.into();
        if !path.exists() {
            return Err(PretrainedError::NoFolder { folder: path });
        }
        let config = read_json(&path.join(CONFIG))?;
        let tensors = if path.join(WEIGHTS).exists() {
            tensors_of(&path.join(WEIGHTS))?
        } else if path.join(INDEX).exists() {
            indexed(&path)?
        } else {
            return Err(PretrainedError::NoWeights { found: weights_in(&path)?, folder: path });
        };
        let left_out = BTreeSet::new();
        Ok(Self { path, config, tensors, growth: None, is_without_weights: false, left_out })
    }

    /// Opens a folder with `config.json` whose weights are elsewhere, and are taken to be those of the class that
    /// [`architectures`](Self::architectures) names.
    ///
    /// # Errors
    ///
    /// The file does not exist or is not JSON.
    pub fn without_weights(path: impl Into<PathBuf>) -> Result<Self, PretrainedError> {
        let path = path.into();
        let config = read_json(&path.join(CONFIG))?;
        let (tensors, left_out) = (BTreeMap::new(), BTreeSet::new());
        Ok(Self { path, config, tensors, growth: None, is_without_weights: true, left_out })
    }

    /// Opens a folder whose weights nobody reads: [with them](Self::open) if they are there, and otherwise
    /// [without](Self::without_weights).
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open), but for missing weights.
    pub fn described(path: impl Into<PathBuf>) -> Result<Self, PretrainedError> {
        match Self::open(path) {
            Err(PretrainedError::NoWeights { folder, .. }) => Self::without_weights(folder),
            opened => opened,
        }
    }

    /// The folder's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The family that `config.json` names, such as `bert`.
    pub fn model_type(&self) -> Option<&str> {
        self.config.get("model_type").and_then(Value::as_str)
    }

    /// The class names that `config.json` lists for the saved weights, such as `BertForMaskedLM`.
    pub fn architectures(&self) -> Vec<&str> {
        let names = self.config.get("architectures").and_then(Value::as_array);
        names.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// Parses `config.json` as a family's configuration.
    ///
    /// # Errors
    ///
    /// It belongs to another family, a field is missing or has another type, or it requests something unsupported.
    pub fn config<C: HubConfig>(&self) -> Result<C, PretrainedError> {
        let found = self.model_type().unwrap_or("none");
        if !C::MODEL_TYPES.contains(&found) {
            let expected = format!("one of {}", C::MODEL_TYPES.join(", "));
            return Err(PretrainedError::setting("model_type", expected, found));
        }
        let mut config: C = serde_json::from_value(Value::Object(self.config.clone())).map_err(|error| {
            PretrainedError::Config { path: self.path.join(CONFIG), reason: error.to_string() }
        })?;
        config.check()?;
        config.settle(self)?;
        Ok(config)
    }

    /// The tokens that end a text: `eos_token_id` of `generation_config.json`, or else of `config.json`, or else of the
    /// model's class in transformers. The field holds one token or several.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or the field holds something else.
    pub fn end_tokens(&self) -> Result<Vec<u32>, PretrainedError> {
        let path = self.path.join(GENERATION);
        let generation = if path.exists() { read_json(&path)? } else { Map::new() };
        match generation.get(END).is_some_and(|value| !value.is_null()) {
            true => tokens_in(&generation, END, path),
            false => self.tokens_of_config(END),
        }
    }

    /// The tokens of a field of `config.json`; if the field is absent, those of the model's class in transformers that
    /// the vocabulary has.
    fn tokens_of_config(&self, field: &str) -> Result<Vec<u32>, PretrainedError> {
        if self.config.contains_key(field) {
            return tokens_in(&self.config, field, self.path.join(CONFIG));
        }
        let size = self.config.get("vocab_size").and_then(Value::as_u64).unwrap_or(u64::MAX);
        let token = token_of_class(self.model_type().unwrap_or_default(), field);
        Ok(token.into_iter().filter(|token| u64::from(*token) < size).collect())
    }

    /// The tokens that every text must have, as in transformers: `forced_bos_token_id` and `forced_eos_token_id` of
    /// `generation_config.json`, or of `config.json` if there is no such file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or a field holds something else than a token, or for the last token several.
    pub fn forced_tokens(&self) -> Result<ForcedTokens, PretrainedError> {
        let path = self.path.join(GENERATION);
        let (path, first, last) = match path.exists() {
            true => {
                let fields = read_json(&path)?;
                let of = |field| tokens_in(&fields, field, path.clone());
                (path.clone(), of(FORCED_FIRST)?, of(FORCED_LAST)?)
            }
            false => {
                let of = |field| self.tokens_of_config(field);
                (self.path.join(CONFIG), of(FORCED_FIRST)?, of(FORCED_LAST)?)
            }
        };
        if first.len() > 1 {
            let reason =
                format!("`{FORCED_FIRST}`: expected the id of a token, found {} of them", first.len());
            return Err(PretrainedError::Config { path, reason });
        }
        Ok(ForcedTokens { first: first.first().copied(), last })
    }

    /// The tensors by name, with their values unread.
    pub(super) fn tensors(&self) -> &BTreeMap<String, StoredTensor> {
        &self.tensors
    }

    /// Forgets the tensors. Their files are closed as soon as no parameter waits to be read from them: while a file is
    /// mapped, the system counts what was read of it as memory of the program.
    ///
    /// Configuration and path stay. Load the model first: a model that is loaded afterwards finds no tensors.
    pub fn close_weights(&mut self) {
        self.tensors.clear();
    }

    /// Lets a model of more tokens, `to` instead of `from`, be loaded: each new row of the embeddings, of a head and of its
    /// bias is the mean of the folder's rows, as in the `resize_token_embeddings` of transformers.
    pub fn growing(self, from: usize, to: usize) -> Self {
        Self { growth: (to > from).then_some(Growth { from, to }), ..self }
    }

    /// Whether models get more tokens than the folder has.
    pub fn is_growing(&self) -> bool {
        self.growth.is_some()
    }

    /// The tokens that models get besides the folder's.
    pub(super) fn growth(&self) -> Option<Growth> {
        self.growth
    }

    /// Removes a head with its tensors, as if the files did not contain them.
    pub(super) fn leave_out(&mut self, head: &str, tensors: &[String]) {
        tensors.iter().for_each(|name| drop(self.tensors.remove(name)));
        self.left_out.insert(head.into());
    }

    /// Returns whether this head of a class is there, of a folder whose weights are elsewhere; `None` if they are in the folder.
    pub(super) fn head_elsewhere(&self, head: &str, class: &str) -> Option<bool> {
        let classes = self.architectures();
        let is_of_class = classes.is_empty() || classes.contains(&class);
        self.is_without_weights.then(|| is_of_class && !self.left_out.contains(head))
    }

    /// Whether the files contain both tensors, each under one of its names, and their values differ. Tied parameters
    /// have equal values.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub(crate) fn differ<A: AsRef<str>, B: AsRef<str>>(
        &self,
        one: &[A],
        other: &[B],
    ) -> Result<bool, PretrainedError> {
        let one = one.iter().find_map(|name| self.tensors.get(name.as_ref()));
        let other = other.iter().find_map(|name| self.tensors.get(name.as_ref()));
        let (Some(one), Some(other)) = (one, other) else { return Ok(false) };
        let bytes = |tensor: &StoredTensor| {
            let read = tensor.to_bytes();
            read.map_err(|error| PretrainedError::file(&self.path, "read a tensor", error))
        };
        let alike = one.dtype == other.dtype && one.shape == other.shape;
        Ok(!alike || bytes(one)?[..] != bytes(other)?[..])
    }
}

/// The tokens that every generated text must have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForcedTokens {
    /// The first token, if the prompt is one token.
    pub first: Option<u32>,
    /// The tokens of which one ends the longest texts.
    pub last: Vec<u32>,
}

/// Returns the tokens of a field that holds one or several; none if it is null or absent. `path` is its file.
fn tokens_in(fields: &Map<String, Value>, field: &str, path: PathBuf) -> Result<Vec<u32>, PretrainedError> {
    let token = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
    let value = fields.get(field).unwrap_or(&Value::Null);
    let tokens = match value {
        Value::Null => Some(Vec::new()),
        Value::Array(values) => values.iter().map(token).collect(),
        value => token(value).map(|token| vec![token]),
    };
    let reason = || format!("`{field}`: expected the id of a token, or a list of them, found {value}");
    tokens.ok_or_else(|| PretrainedError::Config { path, reason: reason() })
}

/// Reads a JSON object from a file.
fn read_json(path: &Path) -> Result<Map<String, Value>, PretrainedError> {
    let failed = |error| PretrainedError::file(path, "read it", error);
    require_file(path)?;
    let mut text = Vec::new();
    let file = File::open(path).map_err(failed)?;
    file.take(MOST_JSON + 1).read_to_end(&mut text).map_err(failed)?;
    let reason = match serde_json::from_slice(&text) {
        _ if text.len() as u64 > MOST_JSON => format!("expected at most {MOST_JSON} bytes, found more"),
        Ok(Value::Object(fields)) => return Ok(fields),
        Ok(_) => "expected an object, found a different value".into(),
        Err(error) => error.to_string(),
    };
    Err(PretrainedError::Config { path: path.into(), reason })
}

/// Rejects anything but a file, such as a pipe, which would block. Links to files are allowed, since caches use them.
fn require_file(path: &Path) -> Result<(), PretrainedError> {
    let kind = fs::metadata(path).map_err(|error| PretrainedError::file(path, "open it", error))?;
    match kind.is_file() {
        true => Ok(()),
        false => Err(PretrainedError::file(path, "open it", "expected a file, found something else")),
    }
}

/// The tensors of one file.
fn tensors_of(path: &Path) -> Result<BTreeMap<String, StoredTensor>, PretrainedError> {
    require_file(path)?;
    let mut store = SafetensorsStore::from_file(path);
    let damaged =
        |error: &dyn ToString| PretrainedError::Weights { path: path.into(), reason: error.to_string() };
    let tensors = store.get_all_tensors().map_err(|error| damaged(&error))?;
    Ok(tensors.clone())
}

/// The tensors of several files, each from the file that the index names.
fn indexed(folder: &Path) -> Result<BTreeMap<String, StoredTensor>, PretrainedError> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let path = folder.join(INDEX);
    let wrong = |reason: String| PretrainedError::Index { path: path.clone(), reason };
    let fields = Value::Object(read_json(&path)?);
    let Index { weight_map } = serde_json::from_value(fields).map_err(|error| wrong(error.to_string()))?;
    let mut files = BTreeMap::new();
    for file in weight_map.values().collect::<BTreeSet<_>>() {
        let mut parts = Path::new(file).components();
        let plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
        if !plain || file.contains(['/', '\\']) || !file.ends_with(".safetensors") {
            return Err(wrong(format!(
                "expected the name of a safetensors file in this folder, found `{file}`"
            )));
        }
        files.insert(file, tensors_of(&folder.join(file))?);
    }
    let find = |(name, file): (&String, &String)| match files.get_mut(file).and_then(|file| file.remove(name))
    {
        Some(tensor) => Ok((name.clone(), tensor)),
        None => Err(wrong(format!("it places `{name}` in {file}, which does not contain it"))),
    };
    weight_map.iter().map(find).collect()
}

/// The weight files of a folder without safetensors, for the error.
fn weights_in(folder: &Path) -> Result<String, PretrainedError> {
    let failed = |error| PretrainedError::file(folder, "list it", error);
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        if [".bin", ".pt", ".h5", ".msgpack", ".onnx", ".gguf", ".safetensors"]
            .iter()
            .any(|end| name.ends_with(end))
        {
            names.insert(name);
        }
    }
    let names = names.into_iter().take(5).collect::<Vec<_>>().join(", ");
    Ok(if names.is_empty() { "no weights".into() } else { names })
}

/// Whether parameters can be read from this dtype.
pub(super) fn is_read(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
}
