//! Groups of parameters, each with its own learning rate and weight decay.

use std::collections::HashMap;

use burn::module::{Module, ParamId};
use burn::optim::Optimizer;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Alike, ModelGroups, ModelOptimizer, OptimizerRecipe, layer_decay};
use crate::{PathError, Paths, SettingError, each_distinct_param};

/// Parameter groups with their own learning rate and weight decay.
///
/// By default, parameters use the learning rate of the schedule, and the optimizer's weight decay applies to parameters
/// of two or more axes. Parameters of one axis, the biases and the scales of norms, do not decay, unless a group sets a
/// decay.
///
/// A parameter belongs to the first group that selects it. The factors of groups and of
/// [layer-wise decay](Self::layer_decay) are multiplied with each other and with the schedule's rate at each update, so
/// the schedule has the same shape in all groups. The factors that [`Lora`](crate::Lora) attaches to a matrix belong to
/// the matrix's group.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::Device};
/// use firebrick_strategies::optim::{AdamW, Group, Groups};
///
/// let device = Device::flex().autodiff();
/// let linear = || LinearConfig::new(2, 2).init(&device);
/// let model = (vec![linear(), linear()], linear()); // two blocks and a head
/// let groups = Groups::new()
///     .with(Group::of(["1"]).lr_scale(10.0)) // a fresh head learns faster
///     .layer_decay(0.9);
/// let optimizer = groups.build(&model, &AdamW::new().weight_decay(0.01))?;
/// # let _ = optimizer;
///
/// let error = Groups::new().with(Group::of(["2"])).build(&model, &AdamW::new()).err().unwrap();
/// assert!(error.to_string().contains("group 0: no parameter of the model matches `2`"));
/// # Ok::<(), firebrick_strategies::optim::GroupsError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Groups {
    groups: Vec<Group>,
    weight_decay: Option<f32>,
    layer_decay: Option<f64>,
}

/// Parameters with their own optimizer settings, in a run file `(paths: ["tokens"], lr_scale: 0.1, weight_decay: 0.0)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Paths of the parameters, or of modules that contain them; `*` stands for any characters.
    pub paths: Vec<String>,
    /// The factor of their learning rate. Default: 1.
    #[serde(default = "unscaled")]
    pub lr_scale: f64,
    /// Their weight decay, which also applies to biases and norms. Default: the optimizer's, for matrices only.
    pub weight_decay: Option<f32>,
}

fn unscaled() -> f64 {
    1.0
}

/// Groups that do not fit the model. Groups count from 0.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum GroupsError {
    /// A pattern of a group matches nothing in the model.
    #[error("parameter group {group}: {error}")]
    Path {
        /// The group.
        group: usize,
        /// The pattern, and the nearest paths.
        error: PathError,
    },
    /// A group has no path.
    #[error("parameter group {group} names no path: give it one, or take it out")]
    NoPaths {
        /// The group.
        group: usize,
    },
    /// Earlier groups select all parameters of a group.
    #[error(
        "parameter group {group}: earlier groups have all parameters that {paths} names, and the first that names a \
         parameter counts: put it before them, or take it out"
    )]
    Hidden {
        /// The group.
        group: usize,
        /// Its patterns.
        paths: String,
    },
    /// A setting of a group is out of range.
    #[error("parameter group {group}: `{setting}` must be {expected}, found {found}")]
    Value {
        /// The group.
        group: usize,
        /// The setting's name.
        setting: &'static str,
        /// The allowed range.
        expected: &'static str,
        /// The given value.
        found: f64,
    },
    /// The layer-wise decay is out of range.
    #[error("the layer-wise decay must be above 0 and at most 1, found {found}")]
    LayerDecay {
        /// The given value.
        found: f64,
    },
    /// The model has no blocks for the layer-wise decay.
    #[error(
        "the layer-wise decay needs blocks, the elements of a list that is a field of the model, and this model has \
         none: leave it out, and scale the rate of parameter groups"
    )]
    NoBlocks,
    /// A setting of the optimizer is out of range.
    #[error("the optimizer: {0}")]
    Optimizer(#[from] SettingError),
}

impl Group {
    /// Selects the parameters that these [patterns](Paths) match, such as `tokens`, `blocks.0.*` and `*.gamma`.
    pub fn of(paths: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let paths = paths.into_iter().map(Into::into).collect();
        Self { paths, lr_scale: unscaled(), weight_decay: None }
    }

    /// Sets the factor of the learning rate, at least 0; at 0 the parameters do not change. Default: 1.
    pub fn lr_scale(self, lr_scale: f64) -> Self {
        Self { lr_scale, ..self }
    }

    /// Sets the weight decay, biases and norms included. Default: that of all groups.
    pub fn weight_decay(self, weight_decay: f32) -> Self {
        Self { weight_decay: Some(weight_decay), ..self }
    }

    fn check(&self, group: usize) -> Result<(), GroupsError> {
        if self.paths.is_empty() {
            return Err(GroupsError::NoPaths { group });
        }
        let decay = f64::from(self.weight_decay.unwrap_or(0.0));
        for (setting, found) in [("lr_scale", self.lr_scale), ("weight_decay", decay)] {
            if !(found >= 0.0 && found.is_finite()) {
                return Err(GroupsError::Value { group, setting, expected: "at least 0", found });
            }
        }
        Ok(())
    }
}

impl Groups {
    /// Creates settings without groups: one learning rate for all, and the optimizer's weight decay for matrices.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a group. It contains the parameters that it selects, except those of earlier groups.
    pub fn with(mut self, group: Group) -> Self {
        self.groups.push(group);
        self
    }

    /// Sets the weight decay of parameters of two or more axes, unless their group sets another one. Default: the
    /// optimizer's; with [`init`](Self::init), 0.
    pub fn weight_decay(self, weight_decay: f32) -> Self {
        Self { weight_decay: Some(weight_decay), ..self }
    }

    /// Lowers the learning rate from block to block towards the input. The last of `n` blocks trains at `decay` times the
    /// learning rate, the one before it at `decay²` times, and the first at `decayⁿ` times. The parameters before the
    /// blocks, the embeddings, train at `decayⁿ⁺¹` times the learning rate; those after the blocks, the head, at the
    /// full rate ([Clark et al., 2020](https://arxiv.org/abs/2003.10555); the powers are those of BEiT,
    /// [Bao et al., 2021](https://arxiv.org/abs/2106.08254)).
    ///
    /// Blocks are the [elements of the model's lists](Paths::blocks), in order: in an encoder-decoder model, the
    /// encoder's first. `None` has all blocks train at the full rate.
    pub fn layer_decay(self, decay: impl Into<Option<f64>>) -> Self {
        Self { layer_decay: decay.into(), ..self }
    }

    /// Returns the model's parameters by learning rate factor and weight decay, in the order of the model.
    ///
    /// # Errors
    ///
    /// A group selects nothing, or only parameters of earlier groups; or a setting is out of range.
    pub fn resolve<M: Module>(&self, model: &M) -> Result<ModelGroups, GroupsError> {
        let paths = Paths::of(model);
        let mut group_of = HashMap::new();
        for (index, group) in self.groups.iter().enumerate() {
            group.check(index)?;
            let before = group_of.len();
            for pattern in &group.paths {
                let ids = paths.params_matching(pattern);
                for id in ids.map_err(|error| GroupsError::Path { group: index, error })? {
                    group_of.entry(id).or_insert(group);
                }
            }
            if group_of.len() == before {
                let paths = group.paths.iter().map(|path| format!("`{path}`")).collect::<Vec<_>>().join(", ");
                return Err(GroupsError::Hidden { group: index, paths });
            }
        }
        let scales = match self.layer_decay {
            None => HashMap::new(),
            Some(found) if !(found > 0.0 && found <= 1.0) => return Err(GroupsError::LayerDecay { found }),
            Some(decay) => layer_decay::scales(&paths, decay).ok_or(GroupsError::NoBlocks)?,
        };
        let mut alike: Vec<Alike> = Vec::new();
        let params = params(model);
        for &(id, ref shape) in &params {
            let group = group_of.get(&id).copied();
            let of_group = group.map_or(1.0, |group| group.lr_scale);
            let lr_scale = of_group * scales.get(&id).copied().unwrap_or(1.0);
            let usual = if shape.len() >= 2 { self.weight_decay.unwrap_or(0.0) } else { 0.0 };
            let weight_decay = group.and_then(|group| group.weight_decay).unwrap_or(usual);
            let same = |alike: &&mut Alike| alike.lr_scale == lr_scale && alike.weight_decay == weight_decay;
            match alike.iter_mut().find(same) {
                Some(known) => known.ids.push(id),
                None => alike.push(Alike { ids: vec![id], lr_scale, weight_decay }),
            }
        }
        Ok(ModelGroups::new(alike, paths, params))
    }

    /// Creates an optimizer for the whole model: `recipe` for each group, at its learning rate and with its weight decay.
    ///
    /// # Errors
    ///
    /// A setting of the optimizer is out of range, or those of [`resolve`](Self::resolve).
    pub fn build<M: Module>(
        &self,
        model: &M,
        recipe: &dyn OptimizerRecipe,
    ) -> Result<ModelOptimizer, GroupsError> {
        recipe.check()?;
        let weight_decay = self.weight_decay.or(Some(recipe.matrix_decay()));
        Ok(recipe.build(&Self { weight_decay, ..self.clone() }.resolve(model)?))
    }

    /// Like [`build`](Self::build), for any optimizer of Burn: the weight decay is set by `decaying`. Its updates are made one by
    /// one.
    ///
    /// # Errors
    ///
    /// The same as [`resolve`](Self::resolve).
    pub fn init<M: Module, O: Optimizer>(
        &self,
        model: &M,
        optimizer: O,
        decaying: impl Fn(O, f32) -> O,
    ) -> Result<ModelOptimizer, GroupsError> {
        Ok(self.resolve(model)?.build(|weight_decay| decaying(optimizer.clone(), weight_decay)))
    }
}

/// Returns the float parameters, each once, with their shapes.
fn params<M: Module>(model: &M) -> Vec<(ParamId, Vec<usize>)> {
    let mut params = Vec::new();
    each_distinct_param(model, |param| params.push((param.id(), param.shape())));
    params
}

#[cfg(test)]
#[path = "tests/groups.rs"]
mod tests;
