//! Low-rank factors apart from the model that they adapt, as files of PEFT.
//!
//! ```text
//! mod.rs          Adapters: the factors of a model, and a model with them
//! save.rs         writes them in the format of PEFT
//! load.rs         reads them
//! peft_config.rs  the settings of PEFT that Firebrick has
//! ```

mod load;
mod peft_config;
mod save;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use burn::module::Module;
use burn::tensor::{DType, TensorData};
use firebrick_strategies::{
    Adaptation, Composition, FactorValues, Lora, LowRank, Paths, StartingFactors, StrategyError,
    each_distinct_param,
};

pub use load::NamedParameter;
pub use save::{AdaptedModel, SavedParameter};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
/// What the names of all tensors begin with.
const PREFIX: &str = "base_model.model.";
/// The names of A and B of a layer, below its module.
const LAYER: [&str; 2] = ["lora_A.weight", "lora_B.weight"];
/// The names of A and B of a table of embeddings.
const EMBEDDING: [&str; 2] = ["lora_embedding_A", "lora_embedding_B"];
/// The name of the magnitudes of DoRA, below the module.
const MAGNITUDE: &str = "lora_magnitude_vector";
/// The module, below one with factors, that PEFT keeps the given values in.
const BASE: &str = "base_layer";

/// What [`Lora`](crate::Lora) trained: the factors of each adapted matrix, and the parameters trained as a whole.
#[derive(Clone, Debug)]
pub struct Adapters {
    /// The rank of all factors, and the scale of their products.
    pub low_rank: LowRank,
    /// The factors, in the order of the model, or of their names if they were read from a folder.
    pub factors: Vec<Factors>,
    /// The path and the values of each parameter trained as a whole.
    pub whole: Vec<(String, TensorData)>,
    /// The path and the values of parameters that were not trained, and that the folder of the given model lacks: tables
    /// that have grown with a vocabulary. A matrix with factors may be among them.
    pub given: Vec<(String, TensorData)>,
    /// The dropout on the input of the factors that they were trained with. It does not affect what an adapted model
    /// computes.
    pub dropout: f64,
    /// The folder that they were read from.
    folder: Option<PathBuf>,
}

/// The factors of one matrix W `[in, out]`: their scaled product A·B is added to it. With magnitudes, its columns are
/// then scaled to these norms.
#[derive(Clone, Debug)]
pub struct Factors {
    /// The matrix's path.
    pub path: String,
    /// A, `[in, rank]`.
    pub a: TensorData,
    /// B, `[rank, out]`.
    pub b: TensorData,
    /// The norms of the columns, `[out]`, with DoRA alone.
    pub magnitude: Option<TensorData>,
    /// Whether the matrix is a table of embeddings.
    is_embedding: bool,
}

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
        let mut adapters = Self {
            low_rank,
            factors: Vec::new(),
            whole: Vec::new(),
            given: Vec::new(),
            dropout: adaptation.dropout(),
            folder: None,
        };
        // The model visits A first, then B, then the magnitudes if there are any.
        let mut first: Option<TensorData> = None;
        for (id, data) in values {
            let Some(place) = paths.places().iter().find(|place| place.id == id) else { continue };
            let Some(path) = &place.reparameterizes else {
                adapters.whole.push((place.path.clone(), data));
                continue;
            };
            if data.shape().num_dims() == 1 {
                if let Some(last) = adapters.factors.last_mut() {
                    last.magnitude = Some(data);
                }
                continue;
            }
            let Some(a) = first.take() else {
                first = Some(data);
                continue;
            };
            let is_embedding = place.holder.contains("Embedding");
            adapters.factors.push(Factors { path: path.clone(), a, b: data, magnitude: None, is_embedding });
        }
        Some(adapters)
    }

    /// Adds parameters that were not trained, and that the folder of the given model lacks, by their paths. Those that are
    /// there already, and those that were trained whole, keep their values.
    pub fn with_given(mut self, given: impl IntoIterator<Item = (String, TensorData)>) -> Self {
        for (path, data) in given {
            if !self.whole.iter().chain(&self.given).any(|(known, _)| *known == path) {
                self.given.push((path, data));
            }
        }
        self
    }

    /// Returns the recipe that trains the same factors: of this rank and scale, on these matrices, with the same dropout
    /// and the same parameters trained whole.
    pub fn recipe(&self) -> Lora {
        let LowRank { rank, alpha, rank_stabilized, dora } = self.low_rank;
        let lora = Lora::rank(rank).alpha(alpha).dropout(self.dropout);
        let lora = if rank_stabilized { lora.rank_stabilized() } else { lora };
        let lora = if dora { lora.dora() } else { lora };
        let whole = self.whole.iter().map(|(path, _)| path.as_str());
        lora.on(self.factors.iter().map(|factors| factors.path.as_str())).also(whole)
    }

    /// Checks whether a recipe's factors, if it has any, have this rank and scale.
    ///
    /// # Errors
    ///
    /// [`StrategyError::Factors`].
    pub fn require(&self, recipe: Option<LowRank>) -> Result<(), StrategyError> {
        let given = self.to_start();
        recipe.ok_or_else(|| given.not_taken()).and_then(|recipe| given.require(recipe))
    }

    /// Merges the factors into the matrices of the model that they adapt: W + α/r · A·B, scaled to the magnitudes if
    /// there are any. Returns the model that a run
    /// with these factors returns.
    ///
    /// # Errors
    ///
    /// [`StrategyError::Factors`] if they do not fit the model, or [`StrategyError::Path`] if it lacks a matrix.
    pub fn merge_into<M: Module + 'static>(&self, model: M) -> Result<M, StrategyError> {
        let mut adaptation = Adaptation::default().starting_from(Some(self.to_start()));
        let adapted = self.recipe().adapt(model, &mut adaptation)?;
        Ok(adaptation.give_back(adapted))
    }

    /// Returns the values as [`Adaptation::starting_from`] takes them.
    pub fn to_start(&self) -> Arc<StartingFactors> {
        let source = match &self.folder {
            Some(folder) => folder.display().to_string(),
            None => "the adapters of another run".into(),
        };
        let factors = self.factors.iter().map(|Factors { path, a, b, magnitude, .. }| {
            (path.clone(), FactorValues { a: a.clone(), b: b.clone(), magnitude: magnitude.clone() })
        });
        let (factors, whole, given) = (factors.collect(), self.whole.clone(), self.given.clone());
        Arc::new(StartingFactors { source, low_rank: self.low_rank, factors, whole, given })
    }
}
