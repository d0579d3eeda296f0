//! Reads adapters in the format of PEFT.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use burn::tensor::{DType, TensorData};
use firebrick_strategies::LowRank;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value};

use super::peft_config::PeftConfig;
use super::{Adapters, BASE, CONFIG, EMBEDDING, Factors, LAYER, MAGNITUDE, PREFIX, WEIGHTS};
use crate::AdapterError;

/// The parameter of a model that has a name in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedParameter {
    /// Its path in the model.
    pub path: String,
    /// Whether the file stores the matrix with its axes swapped.
    pub swapped: bool,
    /// The number of places where the model reads it, each of which has a name of its own in files of PEFT. Values for
    /// some of several places alone are rejected, as are different ones.
    pub places: usize,
}

type Named<'a> = &'a dyn Fn(&str) -> Option<NamedParameter>;

impl Adapters {
    /// Reads the folder that [`save`](Self::save) wrote, where modules are named by their paths in the model. For a
    /// folder with the names of a Hugging Face model, use `firebrick_models::pretrained::load_adapters`.
    ///
    /// Values of f32, f16 and bf16 are read, as f32.
    ///
    /// # Errors
    ///
    /// A file is missing or damaged, or was made with settings of PEFT that Firebrick does not have: another
    /// `peft_type`, a `bias` other than `none`, ranks or alphas by pattern, or initial values that change the
    /// model's matrices (PiSSA, OLoRA, CorDA, LoftQ).
    ///
    /// ```
    /// # use burn::tensor::Device;
    /// # use firebrick::{datasets::Windows, optim::AdamW, Adapters, Data, Lora, Schedule, Trainer};
    /// # use firebrick_models::GptConfig;
    /// # let folder = tempfile::tempdir()?;
    /// # let data = || Data::new(Windows::new((0..99).map(|i| i % 7).collect::<Vec<u32>>(), 8).unwrap());
    /// # let config = GptConfig { layers: 1, heads: 1, width: 8, dropout: 0.0, bias: true, tied: true };
    /// # let model = config.init(7, 8, &Device::flex().autodiff());
    /// # let (optimizer, schedule) = (|| AdamW::new().init().unwrap(), || Schedule::constant(1e-3));
    /// let trainer = Trainer::new().with(Lora::rank(2)).steps(1);
    /// let trained = trainer.fit(model.clone(), optimizer(), schedule(), data())?;
    /// trained.adapters.unwrap().save(&folder)?;
    ///
    /// let adapters = Adapters::load(&folder)?;
    /// let trainer = Trainer::new().with(adapters.recipe()).starting_from(&adapters).steps(1);
    /// let trained_on = trainer.fit(model, optimizer(), schedule(), data())?;
    /// # assert_eq!(trained_on.adapters.unwrap().factors.len(), adapters.factors.len());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn load(folder: impl AsRef<Path>) -> Result<Self, AdapterError> {
        Self::read(folder.as_ref(), &|name| {
            Some(NamedParameter { path: name.to_string(), swapped: true, places: 1 })
        })
    }

    /// Reads the same files as [`load`](Self::load), but with other names: `named` returns the parameter with a name.
    ///
    /// # Errors
    ///
    /// Those of [`load`](Self::load), a name without a parameter, and a tied parameter that is not changed alike at all
    /// places where the model reads it.
    pub fn load_named(
        folder: impl AsRef<Path>,
        named: impl Fn(&str) -> Option<NamedParameter>,
    ) -> Result<Self, AdapterError> {
        Self::read(folder.as_ref(), &named)
    }

    fn read(folder: &Path, named: Named) -> Result<Self, AdapterError> {
        let path = folder.join(CONFIG);
        let file = |reason: String| AdapterError::File { path: path.clone(), reason };
        let text = fs::read(&path).map_err(|error| file(error.to_string()))?;
        let fields: Map<String, Value> =
            serde_json::from_slice(&text).map_err(|error| file(error.to_string()))?;
        let config = PeftConfig::of(&path, &fields)?;
        let PeftConfig { low_rank, dropout, by_peft, .. } = config;
        let mut read = Tensors::of(folder, named)?;
        let (factors, whole, given, folder) = (Vec::new(), Vec::new(), Vec::new(), Some(folder.into()));
        let mut adapters = Self { low_rank, factors, whole, given, dropout, folder };
        let mut seen: BTreeMap<String, Seen> = BTreeMap::new();
        for name in read.tensors.keys().cloned().collect::<Vec<_>>() {
            // B and the magnitudes are taken together with A.
            if !read.tensors.contains_key(&name) {
                continue;
            }
            // What PEFT saves of the given model, which is tied where this one is.
            let below = name.replace(&format!(".{BASE}."), ".");
            if module_of(&name).is_none() && (below != name || !config.is_whole(&name)) {
                let parameter = read.parameter(&below, &name)?;
                let data = read.take(&name, parameter.swapped)?;
                match adapters.given.iter().find(|(path, _)| *path == parameter.path) {
                    Some((_, known)) if !are_equal(known, &data) => {
                        return Err(read.other_value(&name, &parameter));
                    }
                    Some(_) => {}
                    None => adapters.given.push((parameter.path, data)),
                }
                continue;
            }
            let (parameter, at) = match module_of(&name) {
                Some((module, names)) => {
                    let (parameter, factors) = read.factors(module, names, low_rank)?;
                    let at = adapters.factors.iter().position(|known| known.path == factors.path);
                    match at.map(|at| &adapters.factors[at]) {
                        Some(known) if known.is_alike(&factors) => {}
                        Some(_) => return Err(read.other_value(&name, &parameter)),
                        None => adapters.factors.push(factors),
                    }
                    (parameter, at)
                }
                None => {
                    let parameter = read.parameter(&name, &name)?;
                    let data = read.take(&name, parameter.swapped)?;
                    let at = adapters.whole.iter().position(|(path, _)| *path == parameter.path);
                    match at.map(|at| &adapters.whole[at].1) {
                        Some(known) if are_equal(known, &data) => {}
                        Some(_) => return Err(read.other_value(&name, &parameter)),
                        None => adapters.whole.push((parameter.path.clone(), data)),
                    }
                    (parameter, at)
                }
            };
            match seen.get_mut(&parameter.path) {
                // Factors and values, or two names of one place.
                Some(known) if at.is_none() || known.places == parameter.places => {
                    return Err(read.named_twice(&name));
                }
                Some(known) => known.places += 1,
                None => drop(seen.insert(parameter.path.clone(), Seen { name, parameter, places: 1 })),
            }
        }
        // A folder of an early version of Firebrick has a tied parameter at one of its places.
        let changed_apart = |seen: &&Seen| by_peft && seen.places < seen.parameter.places;
        if let Some(Seen { name, parameter, .. }) = seen.values().find(changed_apart) {
            return Err(read.tied(name, parameter));
        }
        // A copy beside values that were trained says nothing.
        let whole = &adapters.whole;
        adapters.given.retain(|(path, _)| !whole.iter().any(|(trained, _)| trained == path));
        match adapters.factors.is_empty() {
            true => Err(read.damaged("expected the factors of a matrix, found none")),
            false => Ok(adapters),
        }
    }
}

/// A parameter whose values were read.
struct Seen {
    /// The first tensor that it was read from.
    name: String,
    parameter: NamedParameter,
    /// The number of its places at which there are values.
    places: usize,
}

/// Whether two tensors have the same shape and values.
fn are_equal(one: &TensorData, other: &TensorData) -> bool {
    one.shape() == other.shape() && one.iter::<f32>().eq(other.iter::<f32>())
}

impl Factors {
    /// Whether the values are the same.
    fn is_alike(&self, other: &Self) -> bool {
        let magnitudes = match (&self.magnitude, &other.magnitude) {
            (Some(one), Some(other)) => are_equal(one, other),
            (one, other) => one.is_none() && other.is_none(),
        };
        magnitudes && are_equal(&self.a, &other.a) && are_equal(&self.b, &other.b)
    }
}

/// Returns the module that a factor belongs to, and the names of its factors.
fn module_of(name: &str) -> Option<(&str, [&'static str; 2])> {
    [LAYER, EMBEDDING].into_iter().find_map(|names| {
        let module = names.iter().find_map(|factor| name.strip_suffix(factor)?.strip_suffix('.'));
        module.map(|module| (module, names))
    })
}

/// The tensors of a file that were not taken yet, by their names without the prefix.
struct Tensors<'a> {
    path: PathBuf,
    tensors: BTreeMap<String, TensorData>,
    named: Named<'a>,
}

impl<'a> Tensors<'a> {
    fn of(folder: &Path, named: Named<'a>) -> Result<Self, AdapterError> {
        let path = folder.join(WEIGHTS);
        let mut read = Self { path, tensors: BTreeMap::new(), named };
        let bytes = fs::read(&read.path).map_err(|error| read.damaged(error))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|error| read.damaged(error))?;
        for (name, view) in file.iter() {
            let dtype = match view.dtype() {
                Dtype::F32 => DType::F32,
                Dtype::F16 => DType::F16,
                Dtype::BF16 => DType::BF16,
                other => return Err(read.wrong(name, "F32, F16 or BF16", &format!("{other:?}"))),
            };
            let bare = name.strip_prefix(PREFIX).ok_or_else(|| read.no_parameter(name))?;
            let data = TensorData::from_bytes_vec(view.data().to_vec(), view.shape().to_vec(), dtype);
            read.tensors.insert(bare.to_string(), data.convert_dtype(DType::F32));
        }
        Ok(read)
    }

    /// Takes the factors of a module.
    fn factors(
        &mut self,
        module: &str,
        names: [&'static str; 2],
        LowRank { rank, dora, .. }: LowRank,
    ) -> Result<(NamedParameter, Factors), AdapterError> {
        let [a, b] = names.map(|factor| format!("{module}.{factor}"));
        let parameter = self.parameter(&format!("{module}.weight"), &a)?;
        let path = parameter.path.clone();
        let (in_a, in_b) = (self.shape(&a)?, self.shape(&b)?);
        if !matches!(in_a[..], [found, _] if found == rank) {
            return Err(self.wrong(&a, &format!("[{rank}, in], for `r` is {rank}"), &format!("{in_a:?}")));
        }
        if !matches!(in_b[..], [_, found] if found == rank) {
            return Err(self.wrong(&b, &format!("[out, {rank}], for `r` is {rank}"), &format!("{in_b:?}")));
        }
        let is_embedding = names == EMBEDDING;
        let name = format!("{module}.{MAGNITUDE}");
        let magnitude = if dora { Some(self.take(&name, false)?) } else { None };
        if parameter.places > 1 && !is_embedding {
            // A layer that reads a table has the product of the same factors the other way round.
            if dora {
                // Its magnitudes are those of rows, and the table's those of columns.
                return Err(self.tied(&a, &parameter));
            }
            let (a, b) = (self.take(&b, false)?, self.take(&a, false)?);
            return Ok((parameter, Factors { path, a, b, magnitude, is_embedding: true }));
        }
        let (a, b) = (self.take(&a, true)?, self.take(&b, true)?);
        Ok((parameter, Factors { path, a, b, magnitude, is_embedding }))
    }

    /// Returns the parameter with this name, which a tensor belongs to.
    fn parameter(&self, name: &str, tensor: &str) -> Result<NamedParameter, AdapterError> {
        (self.named)(name).ok_or_else(|| self.no_parameter(&format!("{PREFIX}{tensor}")))
    }

    /// The error of a parameter that another tensor has another value for.
    fn other_value(&self, tensor: &str, parameter: &NamedParameter) -> AdapterError {
        match parameter.places {
            1 => self.named_twice(tensor),
            _ => self.tied(tensor, parameter),
        }
    }

    fn named_twice(&self, tensor: &str) -> AdapterError {
        self.wrong(tensor, "one of a parameter's names", "another one too")
    }

    fn tied(&self, tensor: &str, parameter: &NamedParameter) -> AdapterError {
        let (tensor, parameter) = (format!("{PREFIX}{tensor}"), parameter.path.clone());
        AdapterError::Tied { path: self.path.clone(), tensor, parameter }
    }

    fn shape(&self, name: &str) -> Result<Vec<usize>, AdapterError> {
        let data = self.tensors.get(name).ok_or_else(|| self.alone(name))?;
        Ok(data.shape().to_vec())
    }

    /// Takes a tensor, with the axes of a matrix swapped if `swapped`.
    fn take(&mut self, name: &str, swapped: bool) -> Result<TensorData, AdapterError> {
        let data = self.tensors.remove(name).ok_or_else(|| self.alone(name))?;
        match (swapped, data.shape().to_vec().as_slice()) {
            (true, &[rows, columns]) => {
                let values: Vec<f32> = data.iter::<f32>().collect();
                let of = |at: usize| values[at % rows * columns + at / rows];
                Ok(TensorData::new((0..values.len()).map(of).collect::<Vec<_>>(), [columns, rows]))
            }
            _ => Ok(data),
        }
    }

    fn damaged(&self, reason: impl ToString) -> AdapterError {
        AdapterError::File { path: self.path.clone(), reason: reason.to_string() }
    }

    fn alone(&self, name: &str) -> AdapterError {
        AdapterError::Alone { path: self.path.clone(), tensor: format!("{PREFIX}{name}") }
    }

    fn no_parameter(&self, tensor: &str) -> AdapterError {
        AdapterError::NoParameter { path: self.path.clone(), tensor: tensor.into() }
    }

    fn wrong(&self, tensor: &str, expected: &str, found: &str) -> AdapterError {
        let (tensor, expected, found) = (tensor.into(), expected.into(), found.into());
        AdapterError::Tensor { path: self.path.clone(), tensor, expected, found }
    }
}
