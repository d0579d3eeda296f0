//! Values that the factors start from, instead of new ones.

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ParamId};
use burn::tensor::TensorData;
use thiserror::Error;

use crate::adaptation::LowRank;
use crate::{Paths, StrategyError, each_param};

/// Factors that [`Lora`](crate::Lora) continues from, such as those of an earlier run.
///
/// Their rank and scale must be those of the recipe, and their matrices those that it adapts.
#[derive(Clone, Debug)]
pub struct StartingFactors {
    /// What errors call them, such as the folder that they were read from.
    pub source: String,
    /// Their rank and scale.
    pub low_rank: LowRank,
    /// The path of each matrix `[in, out]`, and its factors: A, `[in, rank]`, and B, `[rank, out]`.
    pub factors: Vec<(String, [TensorData; 2])>,
    /// The path and the values of parameters that the recipe trains whole. Others of these keep the model's values.
    pub whole: Vec<(String, TensorData)>,
}

/// A difference between given factors and what [`Lora`](crate::Lora) trains.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum UnfitFactors {
    /// Rank, alpha or scale differ.
    #[error("expected factors of {expected}, as the recipe says, found {found}: write `Lora({})`", found.settings())]
    Scale {
        /// Those of the recipe.
        expected: LowRank,
        /// Those of the factors.
        found: LowRank,
    },
    /// The model has no such parameter.
    #[error("`{path}` is no parameter of the model: start from the model that they were trained on")]
    NoParameter {
        /// The path.
        path: String,
    },
    /// The recipe does not adapt the matrix.
    #[error("it has factors of `{path}`, which the recipe does not adapt: name this matrix too in `paths`")]
    NotAdapted {
        /// The matrix.
        path: String,
    },
    /// There are no factors for a matrix.
    #[error("it has no factors of `{path}`, which the recipe adapts: name only its matrices in `paths`")]
    NoFactors {
        /// The matrix.
        path: String,
    },
    /// The recipe does not train the parameter whole.
    #[error("it has values of `{path}`, which the recipe does not train whole: name it in `also`")]
    NotWhole {
        /// The parameter.
        path: String,
    },
    /// Values have another shape.
    #[error("`{path}` must be {expected:?}, found {found:?}: start from the model that they were trained on")]
    Shape {
        /// The path of a parameter, or of a factor, `PATH.lora.a` or `PATH.lora.b`.
        path: String,
        /// The shape in the model.
        expected: Vec<usize>,
        /// The shape of the values.
        found: Vec<usize>,
    },
    /// No strategy takes the factors.
    #[error("no strategy adapts the model with it: add `Lora({})`", found.settings())]
    NotTaken {
        /// Their rank and scale.
        found: LowRank,
    },
}

/// The values by parameter, after their shapes were checked.
#[derive(Default)]
pub(super) struct Start {
    pub factors: HashMap<ParamId, [TensorData; 2]>,
    pub whole: HashMap<ParamId, TensorData>,
}

impl Start {
    /// Finds the parameters of given factors. `targets` are the matrices to be adapted, and `also` the parameters that
    /// are trained whole.
    pub fn of<M: Module>(
        given: &StartingFactors,
        recipe: LowRank,
        (model, paths): (&M, &Paths),
        (targets, also): (&HashSet<ParamId>, &HashSet<ParamId>),
    ) -> Result<Self, StrategyError> {
        let unfit = |error| StrategyError::Factors { factors: given.source.clone(), error };
        given.require(recipe)?;
        let mut shapes = HashMap::new();
        each_param(model, |param| {
            shapes.insert(param.id(), param.shape());
        });
        let id_of = |path: &String| {
            let place = paths.places().iter().find(|place| place.path == *path);
            let place = place.ok_or_else(|| unfit(UnfitFactors::NoParameter { path: path.clone() }));
            place.map(|place| place.id)
        };
        let require = |path: String, expected: Vec<usize>, data: &TensorData| {
            let found = data.shape().to_vec();
            match expected == found {
                true => Ok(()),
                false => Err(unfit(UnfitFactors::Shape { path, expected, found })),
            }
        };
        let mut start = Self::default();
        for (path, factors) in &given.factors {
            let id = id_of(path)?;
            if !targets.contains(&id) {
                return Err(unfit(UnfitFactors::NotAdapted { path: path.clone() }));
            }
            let [a, b] = factors;
            let &[from, to] = shapes[&id].as_slice() else { continue };
            require(format!("{path}.lora.a"), vec![from, recipe.rank], a)?;
            require(format!("{path}.lora.b"), vec![recipe.rank, to], b)?;
            start.factors.insert(id, factors.clone());
        }
        // In the order of the model, so that the same one is reported each time.
        let lacks = |id: &ParamId| targets.contains(id) && !start.factors.contains_key(id);
        if let Some(place) = paths.places().iter().find(|place| lacks(&place.id)) {
            return Err(unfit(UnfitFactors::NoFactors { path: place.path.clone() }));
        }
        for (path, data) in &given.whole {
            let id = id_of(path)?;
            if !also.contains(&id) {
                return Err(unfit(UnfitFactors::NotWhole { path: path.clone() }));
            }
            require(path.clone(), shapes[&id].clone(), data)?;
            start.whole.insert(id, data.clone());
        }
        Ok(start)
    }
}

impl StartingFactors {
    /// Checks whether they have the rank and scale of a recipe.
    ///
    /// # Errors
    ///
    /// [`StrategyError::Factors`].
    pub fn require(&self, recipe: LowRank) -> Result<(), StrategyError> {
        let error = UnfitFactors::Scale { expected: recipe, found: self.low_rank };
        match self.low_rank == recipe {
            true => Ok(()),
            false => Err(StrategyError::Factors { factors: self.source.clone(), error }),
        }
    }

    /// Returns the error for factors that no strategy has taken.
    pub fn not_taken(&self) -> StrategyError {
        let error = UnfitFactors::NotTaken { found: self.low_rank };
        StrategyError::Factors { factors: self.source.clone(), error }
    }
}
