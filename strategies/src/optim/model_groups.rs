//! The parameters of a model by their settings, from which an optimizer is built.

use std::collections::HashMap;

use burn::module::{ParamGroup, ParamId};
use burn::optim::{ModuleOptimizer, Optimizer};

use super::Scaled;
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

    /// Builds an optimizer for the whole model: that of `with_decay` for each group's weight decay, at the group's
    /// learning rate.
    pub fn build<O: Optimizer>(&self, with_decay: impl Fn(f32) -> O) -> ModuleOptimizer {
        // Parameters that the model neither has now nor gets as factors of its matrices belong to no group.
        let all = ModuleOptimizer::from(Scaled::by(1.0, with_decay(0.0)));
        self.alike.iter().fold(all, |all, Alike { ids, lr_scale, weight_decay }| {
            let group = ParamGroup::from_ids(ids.clone()).fuse(&self.factors_of(ids));
            all.with_group(group, Scaled::by(*lr_scale, with_decay(*weight_decay)), None)
        })
    }

    /// Builds an optimizer for the whole model: that of `chosen` for the parameters whose shape `is_chosen`, and that of
    /// `others` for all others. The factors of [`Lora`](crate::Lora) belong to the others.
    pub fn build_split<O: Optimizer, P: Optimizer>(
        &self,
        is_chosen: impl Fn(&[usize]) -> bool,
        chosen: impl Fn(f32) -> O,
        others: impl Fn(f32) -> P,
    ) -> ModuleOptimizer {
        let all = ModuleOptimizer::from(Scaled::by(1.0, others(0.0)));
        self.alike.iter().fold(all, |all, Alike { ids, lr_scale, weight_decay }| {
            let (selected, rest) =
                ids.iter().copied().partition::<Vec<_>, _>(|id| is_chosen(self.shape(*id)));
            let rest = ParamGroup::from_ids(rest).fuse(&self.factors_of(ids));
            all.with_group(rest, Scaled::by(*lr_scale, others(*weight_decay)), None).with_group(
                ParamGroup::from_ids(selected),
                Scaled::by(*lr_scale, chosen(*weight_decay)),
                None,
            )
        })
    }

    /// Selects the factors that [`Lora`](crate::Lora) may attach to these parameters, which have the same settings.
    fn factors_of(&self, ids: &[ParamId]) -> ParamGroup {
        let own = self.paths.places().iter().filter(|place| ids.contains(&place.id));
        let factors = own
            .flat_map(|place| ["a", "b", "magnitude"].map(|factor| format!("{}.lora.{factor}", place.path)));
        ParamGroup::from_paths(factors.collect::<Vec<_>>())
    }
}
