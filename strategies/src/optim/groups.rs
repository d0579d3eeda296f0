//! Groups of parameters, each with its own learning rate and weight decay.

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ModuleVisitor, Param, ParamGroup, ParamId};
use burn::optim::{ModuleOptimizer, Optimizer};
use burn::tensor::Tensor;
use thiserror::Error;

use super::{Scaled, layer_decay};
use crate::{PathError, Paths};

/// Which parameters of a model an optimizer treats otherwise: at another rate, with another weight decay.
///
/// What no group says is as usual: the learning rate of the schedule, and the [weight decay](Self::weight_decay) for
/// parameters of two or more axes. Those of one, the biases and the scales of norms, do not decay, unless a group
/// says so.
///
/// A parameter belongs to the first group that names it. Groups and [layer-wise decay](Self::layer_decay) both count:
/// their factors are multiplied. They multiply what the schedule says at each update, so that warmup and decay are the
/// same in all groups. The factors that [`Lora`](crate::Lora) attaches to a matrix are treated as the matrix is.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::Device};
/// use firebrick_strategies::optim::{AdamW, Group, Groups};
///
/// let device = Device::flex().autodiff();
/// let linear = || LinearConfig::new(2, 2).init(&device);
/// let model = (vec![linear(), linear()], linear()); // two blocks and a head
/// let groups = Groups::new()
///     .weight_decay(0.01)
///     .with(Group::of(["1"]).lr_scale(10.0)) // a fresh head learns faster
///     .layer_decay(0.9);
/// let optimizer = groups.init(&model, AdamW::new(), AdamW::weight_decay)?;
/// # let _ = optimizer;
///
/// let error = Groups::new().with(Group::of(["2"])).init(&model, AdamW::new(), AdamW::weight_decay).err().unwrap();
/// assert!(error.to_string().contains("group 0: no parameter of the model matches `2`"));
/// # Ok::<(), firebrick_strategies::optim::GroupsError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Groups {
    groups: Vec<Group>,
    weight_decay: f32,
    layer_decay: Option<f64>,
}

/// Parameters at some paths, and what is different for them.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    paths: Vec<String>,
    lr_scale: f64,
    weight_decay: Option<f32>,
}

/// Parameters that an optimizer treats alike, as [`Groups::resolve`] finds them.
#[derive(Clone, Debug, PartialEq)]
pub struct Alike {
    /// The parameters, each once, in the order of the model.
    pub ids: Vec<ParamId>,
    /// What their learning rate is multiplied by.
    pub lr_scale: f64,
    /// Their weight decay.
    pub weight_decay: f32,
}

/// Groups that do not fit the model. They are counted from 0.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum GroupsError {
    /// A pattern of a group means nothing in the model.
    #[error("parameter group {group}: {error}")]
    Path {
        /// The group.
        group: usize,
        /// The pattern, and the paths that are nearest to it.
        error: PathError,
    },
    /// A group names no path.
    #[error("parameter group {group} names no path: give it one, or take it out")]
    NoPaths {
        /// The group.
        group: usize,
    },
    /// All that a group names belongs to groups before it.
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
    /// A number of a group cannot be.
    #[error("parameter group {group}: `{setting}` must be {expected}, found {found}")]
    Value {
        /// The group.
        group: usize,
        /// The number's name.
        setting: &'static str,
        /// What it may be.
        expected: &'static str,
        /// What it is.
        found: f64,
    },
    /// The decay from layer to layer cannot be.
    #[error("the layer-wise decay must be above 0 and at most 1, found {found}")]
    LayerDecay {
        /// What it is.
        found: f64,
    },
    /// There are no layers that rates could decay over.
    #[error(
        "the layer-wise decay needs blocks, the elements of a list that is a field of the model, and this model has \
         none: leave it out, and scale the rate of parameter groups"
    )]
    NoBlocks,
}

impl Group {
    /// The parameters that these [patterns](Paths) mean, such as `tokens`, `blocks.0.*` and `*.gamma`.
    pub fn of(paths: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let paths = paths.into_iter().map(Into::into).collect();
        Self { paths, lr_scale: 1.0, weight_decay: None }
    }

    /// What the learning rate is multiplied by: at least 0, where they stay as they are. Default: 1.
    pub fn lr_scale(self, lr_scale: f64) -> Self {
        Self { lr_scale, ..self }
    }

    /// Their weight decay, biases and norms included. Default: that of all.
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
    /// None: one rate for all, and no weight decay.
    pub fn new() -> Self {
        Self::default()
    }

    /// A further group. Of the parameters that it names, it has those that no earlier one names.
    pub fn with(mut self, group: Group) -> Self {
        self.groups.push(group);
        self
    }

    /// The weight decay of parameters of two or more axes, where their group does not say another. Default: 0.
    pub fn weight_decay(self, weight_decay: f32) -> Self {
        Self { weight_decay, ..self }
    }

    /// Multiplies the rate of each block by `decay` for each block from it to the output, itself included; of what is
    /// before the blocks, the embeddings, once more; of what is behind them, the head, not at all
    /// ([Clark et al., 2020](https://arxiv.org/abs/2003.10555); the powers are those of BEiT,
    /// [Bao et al., 2021](https://arxiv.org/abs/2106.08254)).
    ///
    /// Blocks are the [elements of the model's lists](Paths::blocks), one after the other: of an encoder and a decoder,
    /// the encoder's first.
    pub fn layer_decay(self, decay: f64) -> Self {
        Self { layer_decay: Some(decay), ..self }
    }

    /// The model's parameters by what their rate is multiplied by and how they decay, in the order of the model.
    ///
    /// # Errors
    ///
    /// A group that names nothing, or only what earlier ones have; a number that cannot be.
    pub fn resolve<M: Module>(&self, model: &M) -> Result<Vec<Alike>, GroupsError> {
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
        for (id, axes) in params(model) {
            let group = group_of.get(&id).copied();
            let of_group = group.map_or(1.0, |group| group.lr_scale);
            let lr_scale = of_group * scales.get(&id).copied().unwrap_or(1.0);
            let usual = if axes >= 2 { self.weight_decay } else { 0.0 };
            let weight_decay = group.and_then(|group| group.weight_decay).unwrap_or(usual);
            let same = |alike: &&mut Alike| alike.lr_scale == lr_scale && alike.weight_decay == weight_decay;
            match alike.iter_mut().find(same) {
                Some(known) => known.ids.push(id),
                None => alike.push(Alike { ids: vec![id], lr_scale, weight_decay }),
            }
        }
        Ok(alike)
    }

    /// An optimizer of the whole model: `optimizer` for each group, at its rate, and with its weight decay set by
    /// `decaying`, as in `groups.init(&model, Lion::new(), Lion::weight_decay)`.
    ///
    /// # Errors
    ///
    /// Those of [`resolve`](Self::resolve).
    pub fn init<M: Module, O: Optimizer>(
        &self,
        model: &M,
        optimizer: O,
        decaying: impl Fn(O, f32) -> O,
    ) -> Result<ModuleOptimizer, GroupsError> {
        let groups = self.resolve(model)?;
        let paths = Paths::of(model);
        // What the model does not have now, and no matrix of it will, belongs to no group.
        let all = ModuleOptimizer::from(Scaled::by(1.0, decaying(optimizer.clone(), 0.0)));
        Ok(groups.into_iter().fold(all, |all, Alike { ids, lr_scale, weight_decay }| {
            let optimizer = Scaled::by(lr_scale, decaying(optimizer.clone(), weight_decay));
            let factors = factors_of(&ids, &paths);
            all.with_group(ParamGroup::from_ids(ids).fuse(&factors), optimizer, None)
        }))
    }
}

/// The factors that [`Lora`](crate::Lora) may attach to these parameters, and which are treated as they are.
pub(super) fn factors_of(ids: &[ParamId], paths: &Paths) -> ParamGroup {
    let own = paths.places().iter().filter(|place| ids.contains(&place.id));
    let factors = own.flat_map(|place| ["a", "b"].map(|factor| format!("{}.lora.{factor}", place.path)));
    ParamGroup::from_paths(factors.collect::<Vec<_>>())
}

/// The float parameters, each once, and how many axes they have.
fn params<M: Module>(model: &M) -> Vec<(ParamId, usize)> {
    struct Axes(Vec<(ParamId, usize)>, HashSet<ParamId>);
    impl ModuleVisitor for Axes {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.1.insert(param.id) {
                self.0.push((param.id, D));
            }
        }
    }
    let mut axes = Axes(Vec::new(), HashSet::new());
    model.visit(&mut axes);
    axes.0
}

#[cfg(test)]
#[path = "tests/groups.rs"]
mod tests;
