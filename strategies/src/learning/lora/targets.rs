//! Selects the matrices that receive factors.

use std::collections::HashSet;

use burn::module::{Module, ParamId};
use serde::{Deserialize, Serialize};

use super::NAME;
use crate::{ParamPlace, Paths, SettingError, StrategyError, each_param};

/// The matrices that [`Lora`](crate::Lora) adapts, if no paths are given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Targets {
    /// The projections of attention.
    #[default]
    Attention,
    /// The matrices of all linear layers: modules whose type is called `Linear`, as in Burn and in Firebrick's models.
    /// It leaves out embeddings, matrices that are tied to one, and the model's head, which
    /// [`Keep::head`](crate::Keep::head) describes. These are the matrices of `all-linear` of PEFT, which also leaves out
    /// the head of a language model or of a `SEQ_CLS` model.
    AllLinear,
}

impl Targets {
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Modules that compute queries, keys and values.
const READ: [&str; 8] = ["query", "key", "value", "query_key_value", "qkv", "q_proj", "k_proj", "v_proj"];
/// Output projections of attention, beside one of the modules above.
const WRITE: [&str; 3] = ["output", "out_proj", "o_proj"];

/// Returns the matrices that patterns match, or those of `default` if there are no patterns.
pub(super) fn matrices_of<M: Module>(
    model: &M,
    paths: &Paths,
    default: Targets,
    patterns: &[String],
) -> Result<HashSet<ParamId>, StrategyError> {
    let matrices = matrices(model);
    if patterns.is_empty() {
        return match default {
            Targets::Attention => projections(paths, &matrices),
            Targets::AllLinear => all_linear(paths, &matrices),
        };
    }
    let mut targets = HashSet::new();
    for pattern in patterns {
        let found = paths.params_matching(pattern);
        let found = found.map_err(|error| StrategyError::Path { strategy: NAME, error })?;
        let found: Vec<_> = found.into_iter().filter(|id| matrices.contains(id)).collect();
        if found.is_empty() {
            let found = format!("`{pattern}`, which means parameters of other shapes");
            let expected = "patterns of matrices, as Linear and Embedding have";
            let error = SettingError { setting: "paths", expected: expected.into(), found };
            return Err(StrategyError::setting(NAME, error));
        }
        targets.extend(found);
    }
    Ok(targets)
}

/// Returns the parameters with two axes.
fn matrices<M: Module>(model: &M) -> HashSet<ParamId> {
    let mut matrices = HashSet::new();
    each_param(model, |param| {
        if param.shape().len() == 2 {
            matrices.insert(param.id());
        }
    });
    matrices
}

fn all_linear(paths: &Paths, matrices: &HashSet<ParamId>) -> Result<HashSet<ParamId>, StrategyError> {
    let found = paths.matrices_of_linear_layers(matrices);
    match found.is_empty() {
        false => Ok(found),
        true => {
            let expected =
                "left out for a model without linear layers besides its head; name matrices in `paths`";
            let (setting, found) = ("targets", format!("{:?}", Targets::AllLinear));
            Err(StrategyError::setting(NAME, SettingError { setting, expected: expected.into(), found }))
        }
    }
}

fn projections(paths: &Paths, matrices: &HashSet<ParamId>) -> Result<HashSet<ParamId>, StrategyError> {
    let matrices: Vec<&ParamPlace> =
        paths.places().iter().filter(|place| matrices.contains(&place.id)).collect();
    let of = |place: &ParamPlace| {
        let (module, _) = place.path.rsplit_once('.')?;
        let (parent, name) = module.rsplit_once('.').unwrap_or(("", module));
        Some((parent.to_string(), name.to_string()))
    };
    let reads = |name: &str| READ.contains(&name);
    let named = || matrices.iter().filter_map(|place| Some((place, of(place)?)));
    let attentions: HashSet<String> =
        named().filter(|(_, (_, name))| reads(name)).map(|(_, (parent, _))| parent).collect();
    let is_target =
        |parent: &String, name: &str| reads(name) || WRITE.contains(&name) && attentions.contains(parent);
    let found = named().filter(|(_, (parent, name))| is_target(parent, name)).map(|(place, _)| place.id);
    let found: HashSet<_> = found.collect();
    match found.is_empty() {
        false => Ok(found),
        true => {
            let shown: Vec<_> = matrices.iter().take(5).map(|place| format!("`{}`", place.path)).collect();
            let found = if shown.is_empty() { "none".into() } else { shown.join(", ") };
            Err(StrategyError::NoProjections { found })
        }
    }
}
