//! Finds the parameters of the values that the factors start from.

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ParamId};
use burn::tensor::TensorData;

use crate::{FactorValues, LowRank, Paths, StartingFactors, StrategyError, UnfitFactors, each_param};

/// The values by parameter, after their shapes were checked.
#[derive(Default)]
pub(super) struct Start {
    pub factors: HashMap<ParamId, FactorValues>,
    /// The values of parameters that are trained whole, and of those that the model had.
    pub values: HashMap<ParamId, TensorData>,
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
        // First, because the factors of a table of other tokens do not fit either.
        for (path, data) in &given.given {
            let id = id_of(path)?;
            let (path, expected, found) = (path.clone(), shapes[&id].clone(), data.shape().to_vec());
            if expected != found {
                return Err(unfit(UnfitFactors::Vocabulary { path, expected, found }));
            }
            start.values.insert(id, data.clone());
        }
        for (path, factors) in &given.factors {
            let id = id_of(path)?;
            if !targets.contains(&id) {
                return Err(unfit(UnfitFactors::NotAdapted { path: path.clone() }));
            }
            let FactorValues { a, b, magnitude } = factors;
            let &[from, to] = shapes[&id].as_slice() else { continue };
            require(format!("{path}.lora.a"), vec![from, recipe.rank], a)?;
            require(format!("{path}.lora.b"), vec![recipe.rank, to], b)?;
            if let Some(magnitude) = magnitude {
                require(format!("{path}.lora.magnitude"), vec![to], magnitude)?;
            }
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
            start.values.insert(id, data.clone());
        }
        Ok(start)
    }
}
