//! Writes adapters in the format of PEFT.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use burn::tensor::TensorData;
use firebrick_strategies::LowRank;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use super::{Adapters, CONFIG, EMBEDDING, Factors, LAYER, MAGNITUDE, PREFIX, WEIGHTS};
use crate::TrainError;
use crate::files::saving::{replace, save_text};

/// Maps a path to the parameter's name in the file, and whether its axes are swapped there.
type Named<'a> = Box<dyn Fn(&str) -> Option<(String, bool)> + 'a>;

impl Adapters {
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
        for Factors { path, a, b, magnitude, is_embedding } in &self.factors {
            let (name, swapped) = name_of(path)?;
            let module = module_of(&name);
            let [of_a, of_b] = match is_embedding {
                true => EMBEDDING,
                false => LAYER,
            };
            swapped_all &= swapped || *is_embedding;
            tensors.insert(format!("{PREFIX}{module}.{of_a}"), Written::of(a, true));
            tensors.insert(format!("{PREFIX}{module}.{of_b}"), Written::of(b, true));
            if let Some(magnitude) = magnitude {
                tensors.insert(format!("{PREFIX}{module}.{MAGNITUDE}"), Written::of(magnitude, false));
            }
            targets.push(module.to_string());
        }
        for (path, data) in &self.whole {
            let (name, swapped) = name_of(path)?;
            whole.insert(module_of(&name).to_string());
            tensors.insert(format!("{PREFIX}{name}"), Written::of(data, swapped));
        }
        let views = tensors.iter().map(|(name, tensor)| Ok((name, tensor.view()?)));
        let views: Result<Vec<_>, safetensors::SafeTensorError> = views.collect();
        // Other programs refuse files without this entry.
        let metadata = [("format".to_string(), "pt".to_string())].into();
        let bytes = views.and_then(|views| safetensors::serialize(views, Some(metadata)));
        let bytes = bytes.map_err(|error| file(error.to_string()))?;
        let path = folder.join(WEIGHTS);
        replace(&path, |staged| fs::write(staged, &bytes).map_err(|error| file(error.to_string())))?;
        let config = self.config(targets, whole, !swapped_all);
        save_text(&format!("{config:#}\n"), &folder.join(CONFIG))
    }

    fn config(&self, targets: Vec<String>, whole: BTreeSet<String>, fan_in_fan_out: bool) -> Value {
        let LowRank { rank, alpha, rank_stabilized, dora } = self.low_rank;
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
            "use_dora": dora,
            "lora_dropout": self.dropout,
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
