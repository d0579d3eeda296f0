//! Writes adapters in the format of PEFT.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use burn::tensor::TensorData;
use firebrick_strategies::LowRank;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

use super::{Adapters, BASE, CONFIG, EMBEDDING, Factors, LAYER, MAGNITUDE, PREFIX, WEIGHTS};
use crate::TrainError;
use crate::saving::{replace, save_text};

/// The model that adapters belong to, as PEFT's configuration describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdaptedModel {
    /// Its folder, or its name on the Hugging Face Hub: `base_model_name_or_path`.
    pub name_or_path: Option<String>,
    /// PEFT's name of its task, such as `CAUSAL_LM`.
    pub task_type: Option<&'static str>,
    /// The name of its class in transformers.
    pub class: Option<String>,
    /// The names of all its parameters in files, one for each place where it reads them, and their paths in the model.
    pub parameters: Vec<(String, String)>,
}

/// How a file holds a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedParameter {
    /// Its name.
    pub name: String,
    /// The names of further places where the model reads it. PEFT has values of their own for each.
    pub tied: Vec<String>,
    /// Whether the axes of a matrix are swapped.
    pub swapped: bool,
}

impl SavedParameter {
    /// Returns the names of all places.
    fn places(self) -> impl Iterator<Item = String> {
        std::iter::once(self.name).chain(self.tied)
    }
}

type Named<'a> = &'a dyn Fn(&str) -> Option<SavedParameter>;

/// Modules that PEFT trains whole in a model of these tasks, though no setting names them.
pub(super) const CLASSIFIERS: [&str; 2] = ["classifier", "score"];
const TASKS_OF_CLASSIFIERS: [&str; 2] = ["SEQ_CLS", "TOKEN_CLS"];

impl Adapters {
    /// Writes `adapter_config.json` and `adapter_model.safetensors` into a folder, in the format of PEFT. Modules are
    /// named by their paths in the model. Creates the folder if it is missing.
    ///
    /// # Errors
    ///
    /// [`TrainError::File`] if they cannot be written.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<(), TrainError> {
        let named =
            |path: &str| Some(SavedParameter { name: path.to_string(), tied: Vec::new(), swapped: true });
        self.write(folder.as_ref(), &AdaptedModel::default(), &named)
    }

    /// Writes the same files as [`save`](Self::save), but with other names: `named` returns how the file holds the
    /// parameter at a path of `model`.
    ///
    /// PEFT gives each place of a tied parameter values of its own, so that those of the parameter are written for all of
    /// its places.
    ///
    /// [Given](Self::given) values are written as PEFT writes the tables of a model whose vocabulary was resized
    /// (`save_embedding_layers`): under the parameter's own name, or below `base_layer` if its module has factors. PEFT puts
    /// them into a model that has as many tokens.
    ///
    /// # Errors
    ///
    /// [`TrainError::File`] if they cannot be written, a parameter has no name, or PEFT [cannot hold](Self::unsavable) them.
    pub fn save_named(
        &self,
        folder: impl AsRef<Path>,
        model: &AdaptedModel,
        named: impl Fn(&str) -> Option<SavedParameter>,
    ) -> Result<(), TrainError> {
        self.write(folder.as_ref(), model, &named)
    }

    /// Returns why no folder of PEFT can hold these adapters, if none can. The arguments are those of
    /// [`save_named`](Self::save_named).
    ///
    /// - A tied matrix has magnitudes: those of a table are norms of its columns, and PEFT's of a layer that reads it are norms
    ///   of its rows.
    /// - A table that encoder and decoder share has factors and is [given](Self::given): once transformers has resized it, both
    ///   read one module, and PEFT puts the factors beside it.
    /// - PEFT saves a module with all that is in it, and not all of that is trained: beside a table that the head of BERT
    ///   reads, the head's bias.
    pub fn unsavable(
        &self,
        model: &AdaptedModel,
        named: impl Fn(&str) -> Option<SavedParameter>,
    ) -> Option<String> {
        let is_tied = |path: &str| named(path).is_some_and(|parameter| !parameter.tied.is_empty());
        let with_magnitudes = self.factors.iter().filter(|factors| factors.magnitude.is_some());
        if let Some(path) = with_magnitudes.map(|factors| &*factors.path).find(|path| is_tied(path)) {
            return Some(format!(
                "`{path}` is tied, and PEFT has no magnitudes (`dora`) of a matrix that two layers read: train it without \
                 `dora`"
            ));
        }
        let shares = |path: &str| {
            named(path).is_some_and(|parameter| parameter.tied.iter().any(|name| is_table(name)))
        };
        let given = self.given.iter().map(|(path, _)| &**path);
        let mut with_factors = given.filter(|path| self.factors.iter().any(|factors| factors.path == **path));
        if let Some(path) = with_factors.find(|path| shares(path)) {
            return Some(format!(
                "`{path}` has grown with the vocabulary, and PEFT loses the factors of a table that encoder and decoder \
                 share when it is resized: train it whole (`also`) instead"
            ));
        }
        let whole: BTreeSet<String> =
            self.whole.iter().filter_map(|(path, _)| named(path)).flat_map(SavedParameter::places).collect();
        let modules = outermost(whole.iter().map(|name| module_of(name).into()).collect(), model.task_type);
        let frozen_in = |outer: &str| {
            let inside = model.parameters.iter().filter(|(name, _)| is_in(module_of(name), outer));
            let frozen = inside.filter(|(name, _)| !whole.contains(name));
            frozen.map(|(_, path)| format!("`{path}`")).collect::<Vec<_>>()
        };
        let mut parts = modules.iter().map(|outer| (outer, frozen_in(outer)));
        let (outer, frozen) = parts.find(|(_, frozen)| !frozen.is_empty())?;
        let frozen = frozen.join(", ");
        Some(format!(
            "PEFT saves the whole of `{outer}`, of which {frozen} stay frozen: name them in `also` too"
        ))
    }

    fn write(&self, folder: &Path, model: &AdaptedModel, named: Named) -> Result<(), TrainError> {
        let file = |reason: String| TrainError::file(folder, "saving the adapters", reason);
        if let Some(reason) = self.unsavable(model, named) {
            return Err(file(format!("{reason}, or use the merged model")));
        }
        fs::create_dir_all(folder).map_err(|error| file(error.to_string()))?;
        let saved_as = |path: &str| {
            named(path)
                .ok_or_else(|| file(format!("the model has no name for `{path}`: it is of another kind")))
        };
        let mut tensors = BTreeMap::new();
        let (mut targets, mut whole, mut swapped_all) = (Vec::new(), BTreeSet::new(), true);
        for Factors { path, a, b, magnitude, is_embedding } in &self.factors {
            let SavedParameter { name, tied, swapped } = saved_as(path)?;
            let module = module_of(&name);
            let [of_a, of_b] = match is_embedding {
                true => EMBEDDING,
                false => LAYER,
            };
            swapped_all &= swapped || *is_embedding;
            tensors.insert(format!("{PREFIX}{module}.{of_a}"), StoredTensor::of(a, true));
            tensors.insert(format!("{PREFIX}{module}.{of_b}"), StoredTensor::of(b, true));
            if let Some(magnitude) = magnitude {
                tensors.insert(format!("{PREFIX}{module}.{MAGNITUDE}"), StoredTensor::of(magnitude, false));
            }
            targets.push(module.to_string());
            for place in &tied {
                let module = module_of(place);
                // Another table has the same factors. A layer multiplies by the table's transpose, and so has the
                // factors the other way round.
                let ([of_a, of_b], [a, b], swapped) = match is_table(place) {
                    true => (EMBEDDING, [a, b], true),
                    false => (LAYER, [b, a], false),
                };
                tensors.insert(format!("{PREFIX}{module}.{of_a}"), StoredTensor::of(a, swapped));
                tensors.insert(format!("{PREFIX}{module}.{of_b}"), StoredTensor::of(b, swapped));
                targets.push(module.to_string());
            }
        }
        for (path, data) in &self.whole {
            let parameter = saved_as(path)?;
            let swapped = parameter.swapped;
            for name in parameter.places() {
                whole.insert(module_of(&name).to_string());
                tensors.insert(format!("{PREFIX}{name}"), StoredTensor::of(data, swapped));
            }
        }
        for (path, data) in &self.given {
            let parameter = saved_as(path)?;
            let swapped = parameter.swapped;
            for name in parameter.places() {
                let module = module_of(&name);
                let name = match targets.iter().any(|target| target == module) {
                    true => format!("{module}.{BASE}{}", &name[module.len()..]),
                    false => name,
                };
                tensors.insert(format!("{PREFIX}{name}"), StoredTensor::of(data, swapped));
            }
        }
        let views = tensors.iter().map(|(name, tensor)| Ok((name, tensor.view()?)));
        let views: Result<Vec<_>, safetensors::SafeTensorError> = views.collect();
        // Other programs refuse files without this entry.
        let metadata = [("format".to_string(), "pt".to_string())].into();
        let bytes = views.and_then(|views| safetensors::serialize(views, Some(metadata)));
        let bytes = bytes.map_err(|error| file(error.to_string()))?;
        let path = folder.join(WEIGHTS);
        replace(&path, |staged| fs::write(staged, &bytes).map_err(|error| file(error.to_string())))?;
        let task_type = model.task_type.filter(|task| !adds_classifiers(task) || trains_classifier(&whole));
        let config = self.config((model, task_type), targets, outermost(whole, task_type), !swapped_all);
        save_text(&format!("{config:#}\n"), &folder.join(CONFIG))
    }

    fn config(
        &self,
        (model, task_type): (&AdaptedModel, Option<&str>),
        targets: Vec<String>,
        whole: BTreeSet<String>,
        fan_in_fan_out: bool,
    ) -> Value {
        let LowRank { rank, alpha, rank_stabilized, dora } = self.low_rank;
        // PEFT writes a whole number without a fraction.
        let alpha = if alpha.fract() == 0.0 { json!(alpha as i64) } else { json!(alpha) };
        // `AutoPeftModel` opens the class of the task, or else this one.
        let class = model.class.as_ref().filter(|_| task_type.is_none());
        let class = class.map(|class| json!({"base_model_class": class, "parent_library": "transformers"}));
        json!({
            "peft_type": "LORA",
            "task_type": task_type,
            "base_model_name_or_path": model.name_or_path,
            "auto_mapping": class,
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

/// Returns modules without those inside another one: PEFT saves a module with all that is in it, and cannot wrap a part
/// of it once more.
fn outermost(mut modules: BTreeSet<String>, task_type: Option<&str>) -> BTreeSet<String> {
    let added = CLASSIFIERS.into_iter().filter(|_| task_type.is_some_and(adds_classifiers));
    let around: Vec<_> =
        added.filter(|outer| modules.iter().any(|module| is_in(module, outer))).map(String::from).collect();
    modules.extend(around);
    let all = modules.clone();
    modules.retain(|module| !all.iter().any(|outer| outer != module && is_in(module, outer)));
    modules
}

/// Whether PEFT trains the classifier of a model of this task, and then misses its values in a file that has none.
fn adds_classifiers(task: &str) -> bool {
    TASKS_OF_CLASSIFIERS.contains(&task)
}

/// Whether a classifier is among these modules.
fn trains_classifier(modules: &BTreeSet<String>) -> bool {
    modules.iter().any(|module| CLASSIFIERS.iter().any(|classifier| is_in(module, classifier)))
}

/// Whether a module is another one, or a part of it.
fn is_in(module: &str, outer: &str) -> bool {
    module.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Whether a further place of a tied table is a table too: those of transformers are called so, and layers are not.
fn is_table(name: &str) -> bool {
    module_of(name).rsplit('.').next().is_some_and(|module| module.contains("embed"))
}

/// Returns the path of the module that a parameter belongs to.
fn module_of(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(module, _)| module)
}

/// A tensor as the file stores it.
struct StoredTensor {
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl StoredTensor {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_saved_with_what_is_in_it() {
        let found = |modules: &[&str], task| {
            let modules = modules.iter().map(ToString::to_string).collect();
            outermost(modules, task).into_iter().collect::<Vec<_>>()
        };
        let tied = ["bert.embeddings.word_embeddings", "cls.predictions", "cls.predictions.decoder"];
        assert_eq!(found(&tied, None), tied[..2]);
        let apart = ["classifier.dense", "classifier.out_proj", "classifiers"];
        assert_eq!(found(&apart, None), apart);
        assert_eq!(found(&apart, Some("SEQ_CLS")), ["classifier", "classifiers"]);
        assert_eq!(found(&["norm"], Some("SEQ_CLS")), ["norm"]);
    }

    #[test]
    fn tables_are_told_from_layers_by_name() {
        for table in ["model.decoder.embed_tokens.weight", "encoder.embed_tokens.weight"] {
            assert!(is_table(table), "{table}");
        }
        for layer in
            ["lm_head.weight", "decoder.weight", "cls.predictions.decoder.weight", "vocab_projector.weight"]
        {
            assert!(!is_table(layer), "{layer}");
        }
    }
}
