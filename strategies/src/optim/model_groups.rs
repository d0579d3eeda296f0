//! The parameters of a model by their settings, from which an optimizer is built.

use std::collections::HashMap;

use burn::module::{ParamGroup, ParamId};
use burn::optim::Optimizer;

use super::model_optimizer::{ModelOptimizer, ParamsOptimizer};
use super::param_optimizer::{AnyOptimizer, OfBurn};
use crate::Paths;

/// Parameters with the same settings, as found by [`Groups::resolve`](super::Groups::resolve).
#[derive(Clone, Debug, PartialEq)]
pub struct Alike {
    /// The parameters, each once, in the order of the model.
    pub ids: Vec<ParamId>,
    /// The factor of their learning rate.
    pub lr_scale: f64,
    /// Their weight decay.
    pub weight_decay: f32,
}

/// The parameters of a model in [groups](super::Groups) with the same settings.
#[derive(Clone, Debug)]
pub struct ModelGroups {
    alike: Vec<Alike>,
    paths: Paths,
    shapes: HashMap<ParamId, Vec<usize>>,
}

impl ModelGroups {
    pub(super) fn new(alike: Vec<Alike>, paths: Paths, params: Vec<(ParamId, Vec<usize>)>) -> Self {
        Self { alike, paths, shapes: params.into_iter().collect() }
    }

    /// Returns the groups, in the order of the model.
    pub fn alike(&self) -> &[Alike] {
        &self.alike
    }

    /// Returns the shape of a parameter; it is empty if the model does not have the parameter.
    pub fn shape(&self, id: ParamId) -> &[usize] {
        self.shapes.get(&id).map_or(&[], Vec::as_slice)
    }

    /// Builds an optimizer for the whole model from any of Burn's: that of `with_decay` for each group's weight decay, at the
    /// group's learning rate.
    pub fn build<O: Optimizer>(&self, with_decay: impl Fn(f32) -> O) -> ModelOptimizer {
        self.of(|weight_decay| OfBurn(with_decay(weight_decay)))
    }

    /// Like [`build`](Self::build), from any optimizer.
    pub(super) fn of<O: AnyOptimizer>(&self, with_decay: impl Fn(f32) -> O) -> ModelOptimizer {
        self.split(|_| false, &with_decay, &with_decay)
    }

    /// Builds an optimizer for the whole model: that of `chosen` for the parameters whose shape `is_chosen`, and that of
    /// `others` for all others. The factors of [`Lora`](crate::Lora) belong to the others.
    pub(super) fn split<O: AnyOptimizer, P: AnyOptimizer>(
        &self,
        is_chosen: impl Fn(&[usize]) -> bool,
        chosen: impl Fn(f32) -> O,
        others: impl Fn(f32) -> P,
    ) -> ModelOptimizer {
        // Parameters that the model neither has now nor gets as factors of its matrices belong to no group.
        let mut groups = vec![ParamsOptimizer::new(ParamGroup::all(), 1.0, others(0.0))];
        for Alike { ids, lr_scale, weight_decay } in &self.alike {
            let (selected, rest) =
                ids.iter().copied().partition::<Vec<_>, _>(|id| is_chosen(self.shape(*id)));
            let rest = ParamGroup::from_ids(rest).fuse(&self.factors_of(ids));
            groups.push(ParamsOptimizer::new(rest, *lr_scale, others(*weight_decay)));
            if !selected.is_empty() {
                let selected = ParamGroup::from_ids(selected);
                groups.push(ParamsOptimizer::new(selected, *lr_scale, chosen(*weight_decay)));
            }
        }
        ModelOptimizer::of(groups)
    }

    /// Selects the factors that [`Lora`](crate::Lora) may attach to these parameters, which have the same settings.
    fn factors_of(&self, ids: &[ParamId]) -> ParamGroup {
        let own = self.paths.places().iter().filter(|place| ids.contains(&place.id));
        let factors = own
            .flat_map(|place| ["a", "b", "magnitude"].map(|factor| format!("{}.lora.{factor}", place.path)));
        ParamGroup::from_paths(factors.collect::<Vec<_>>())
    }
}
