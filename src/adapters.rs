//! Low-rank factors apart from the model that they adapt, and their export to PEFT.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::path::Path;

use burn::module::Module;
use burn::tensor::{DType, TensorData};
use firebrick_strategies::{Adaptation, LowRank, Paths, each_distinct_param};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use crate::TrainError;
use crate::files::saving::{replace, save_text};

/// What [`Lora`](crate::Lora) trained: the factors of each adapted matrix, and the parameters trained as a whole.
#[derive(Clone, Debug)]
pub struct Adapters {
    /// The rank of all factors, and the scale of their products.
    pub low_rank: LowRank,
    /// The factors, in the order of the model.
    pub factors: Vec<Factors>,
    /// The path and the values of each parameter trained as a whole.
    pub whole: Vec<(String, TensorData)>,
}

/// The factors of one matrix W `[in, out]`: their scaled product A·B is added to it.
#[derive(Clone, Debug)]
pub struct Factors {
    /// The matrix's path.
    pub path: String,
    /// A, `[in, rank]`.
    pub a: TensorData,
    /// B, `[rank, out]`.
    pub b: TensorData,
    /// Whether the matrix is a table of embeddings.
    is_embedding: bool,
}

/// Maps a path to the parameter's name in the file, and whether its axes are swapped there.
type Named<'a> = Box<dyn Fn(&str) -> Option<(String, bool)> + 'a>;

impl Adapters {
    /// Collects the adapters of an adapted model, gathered whole. Returns `None` without low-rank adaptation.
    pub(crate) fn of<M: Module>(model: &M, adaptation: &Adaptation) -> Option<Self> {
        let low_rank = adaptation.low_rank()?;
        let paths = Paths::of(model);
        let factors = paths.places().iter().filter(|place| place.reparameterizes.is_some());
        let factors: HashSet<_> = factors.map(|place| place.id).collect();
        let mut values = Vec::new();
        each_distinct_param(model, |param| {
            let id = param.id();
            if factors.contains(&id) || adaptation.is_whole(id) {
                values.push((id, param.to_host().convert_dtype(DType::F32)));
            }
        });
        let mut adapters = Self { low_rank, factors: Vec::new(), whole: Vec::new() };
        // The model visits A before B.
        let mut first: Option<TensorData> = None;
        for (id, data) in values {
            let Some(place) = paths.places().iter().find(|place| place.id == id) else { continue };
            let Some(path) = &place.reparameterizes else {
                adapters.whole.push((place.path.clone(), data));
                continue;
            };
            let Some(a) = first.take() else {
                first = Some(data);
                continue;
            };
            let is_embedding = place.holder.contains("Embedding");
            adapters.factors.push(Factors { path: path.clone(), a, b: data, is_embedding });
        }
        Some(adapters)
    }

    /// Writes `adapter_config.json` and `adapter_model.safetensors` into a folder, in the format of PEFT. Modules are
    /// named by their paths in the model. Creates the folder if it is missing.
    ///
    /// # Errors
    ///
    /// [`TrainError::File`] if they cannot be written.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<(), TrainError> {
        self.write(folder.as_ref(), Box::new(|path| Some((path.to_string(), true))))
    }

    /// Writes the same files as [`save`](Self::save), but with other names: `named` returns the name of the parameter at
    /// a path of the model, and whether the file stores the matrix with its axes swapped.
    ///
    /// # Errors
    ///
    /// [`TrainError::File`] if they cannot be written, or a parameter has no name.
    pub fn save_named(
        &self,
        folder: impl AsRef<Path>,
        named: impl Fn(&str) -> Option<(String, bool)>,
    ) -> Result<(), TrainError> {
        self.write(folder.as_ref(), Box::new(named))
    }

    fn write(&self, folder: &Path, named: Named) -> Result<(), TrainError> {
        let file = |reason: String| TrainError::file(folder, "saving the adapters", reason);
        fs::create_dir_all(folder).map_err(|error| file(error.to_string()))?;
        let name_of = |path: &str| {
            named(path)
                .ok_or_else(|| file(format!("the model has no name for `{path}`: it is of another kind")))
        };
        let mut tensors = BTreeMap::new();
        let (mut targets, mut whole, mut swapped_all) = (Vec::new(), BTreeSet::new(), true);
        for Factors { path, a, b, is_embedding } in &self.factors {
            let (name, swapped) = name_of(path)?;
            let module = module_of(&name);
            let [of_a, of_b] = match is_embedding {
                true => ["lora_embedding_A", "lora_embedding_B"],
                false => ["lora_A.weight", "lora_B.weight"],
            };
            swapped_all &= swapped || *is_embedding;
            tensors.insert(format!("base_model.model.{module}.{of_a}"), Written::of(a, true));
            tensors.insert(format!("base_model.model.{module}.{of_b}"), Written::of(b, true));
            targets.push(module.to_string());
        }
        for (path, data) in &self.whole {
            let (name, swapped) = name_of(path)?;
            whole.insert(module_of(&name).to_string());
            tensors.insert(format!("base_model.model.{name}"), Written::of(data, swapped));
        }
        let views = tensors.iter().map(|(name, tensor)| Ok((name, tensor.view()?)));
        let views: Result<Vec<_>, safetensors::SafeTensorError> = views.collect();
        // Other programs refuse files without this entry.
        let metadata = [("format".to_string(), "pt".to_string())].into();
        let bytes = views.and_then(|views| safetensors::serialize(views, Some(metadata)));
        let bytes = bytes.map_err(|error| file(error.to_string()))?;
        let path = folder.join("adapter_model.safetensors");
        replace(&path, |staged| fs::write(staged, &bytes).map_err(|error| file(error.to_string())))?;
        let config = self.config(targets, whole, !swapped_all);
        save_text(&format!("{config:#}\n"), &folder.join("adapter_config.json"))
    }

    fn config(&self, targets: Vec<String>, whole: BTreeSet<String>, fan_in_fan_out: bool) -> Value {
        let LowRank { rank, alpha, rank_stabilized } = self.low_rank;
        // PEFT writes a whole number without a fraction.
        let alpha = if alpha.fract() == 0.0 { json!(alpha as i64) } else { json!(alpha) };
        json!({
            "peft_type": "LORA",
            "task_type": null,
            "base_model_name_or_path": null,
            "inference_mode": true,
            "r": rank,
            "lora_alpha": alpha,
            "use_rslora": rank_stabilized,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": fan_in_fan_out,
            "init_lora_weights": true,
            "target_modules": targets,
            "modules_to_save": if whole.is_empty() { Value::Null } else { json!(whole) },
        })
    }
}

/// Returns the path of the module that a parameter belongs to.
fn module_of(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(module, _)| module)
}

/// A tensor as the file stores it.
struct Written {
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Written {
    /// Converts to f32, and swaps the axes of a matrix if `swapped`.
    fn of(data: &TensorData, swapped: bool) -> Self {
        let (shape, values) = (data.shape().to_vec(), data.iter::<f32>().collect::<Vec<_>>());
        match (swapped, shape.as_slice()) {
            (true, &[rows, columns]) => {
                let of = |at: usize| values[at % rows * columns + at / rows];
                let bytes = (0..values.len()).flat_map(|at| of(at).to_le_bytes()).collect();
                Self { shape: vec![columns, rows], bytes }
            }
            _ => Self { shape, bytes: values.into_iter().flat_map(f32::to_le_bytes).collect() },
        }
    }

    fn view(&self) -> Result<TensorView<'_>, safetensors::SafeTensorError> {
        TensorView::new(Dtype::F32, self.shape.clone(), &self.bytes)
    }
}
