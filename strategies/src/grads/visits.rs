//! Visits of the gradient of each distinct parameter.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::module::{ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Device, FloatDType, Shape, Tensor};

use super::GradMap;
use super::owed::HalfGradient;
use crate::{ModelParts, Sharding};

/// A function of the gradient of each distinct parameter, `None` if it has no gradient.
pub(super) trait Visit {
    fn visit<const D: usize>(&mut self, id: ParamId, grad: Option<Tensor<D>>) -> Option<Tensor<D>>;
}

impl<F: GradMap> Visit for F {
    fn visit<const D: usize>(&mut self, id: ParamId, grad: Option<Tensor<D>>) -> Option<Tensor<D>> {
        grad.map(|grad| self.map(id, grad))
    }
}

/// Visits the gradient of a tied parameter only once.
pub(super) struct Distinct<'a, V> {
    params: &'a mut GradientsParams,
    visit: &'a mut V,
    seen: HashSet<ParamId>,
}

impl<'a, V> Distinct<'a, V> {
    pub fn new(params: &'a mut GradientsParams, visit: &'a mut V) -> Self {
        Self { params, visit, seen: HashSet::new() }
    }
}

impl<V: Visit> ModuleVisitor for Distinct<'_, V> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.seen.insert(param.id) {
            return;
        }
        let grad = self.params.remove::<D>(param.id);
        if let Some(grad) = self.visit.visit(param.id, grad) {
            self.params.register(param.id, grad);
        }
    }
}

/// The gradients that ranks shard, and those that each rank holds whole. What several ranks of a model's parts have, one of them
/// counts.
pub(super) struct Squares {
    pub sharding: Option<Arc<Sharding>>,
    pub parts: Option<Arc<ModelParts>>,
    pub shards: Vec<DispatchTensor>,
    pub wholes: Vec<DispatchTensor>,
}

impl GradMap for Squares {
    fn map<const D: usize>(&mut self, id: ParamId, grad: Tensor<D>) -> Tensor<D> {
        if self.parts.as_ref().is_some_and(|parts| !parts.counts(id)) {
            return grad;
        }
        let squares = grad.clone().into_dispatch();
        match self.sharding.as_ref().is_some_and(|sharding| sharding.shards(id)) {
            true => self.shards.push(squares),
            false => self.wholes.push(squares),
        }
        grad
    }
}

/// Takes all gradients, in the order of the parameters.
pub(super) struct TakeGrads(pub Vec<(ParamId, DispatchTensor)>);

impl Visit for TakeGrads {
    fn visit<const D: usize>(&mut self, id: ParamId, grad: Option<Tensor<D>>) -> Option<Tensor<D>> {
        self.0.extend(grad.map(|grad| (id, grad.into_dispatch())));
        None
    }
}

/// Takes the gradients that are not on a device, flat, with their shapes.
pub(super) struct Elsewhere<'a> {
    pub device: &'a Device,
    pub found: Vec<(ParamId, Tensor<1>)>,
    pub shapes: HashMap<ParamId, Vec<usize>>,
}

impl Visit for Elsewhere<'_> {
    fn visit<const D: usize>(&mut self, id: ParamId, grad: Option<Tensor<D>>) -> Option<Tensor<D>> {
        let grad = grad?;
        if grad.device() == *self.device {
            return Some(grad);
        }
        self.shapes.insert(id, grad.dims().to_vec());
        self.found.push((id, grad.reshape([-1])));
        None
    }
}

/// Puts flat gradients in the place of those that were taken, in their shapes.
pub(super) struct PutShaped {
    pub flat: HashMap<ParamId, Tensor<1>>,
    pub shapes: HashMap<ParamId, Vec<usize>>,
}

impl Visit for PutShaped {
    fn visit<const D: usize>(&mut self, id: ParamId, kept: Option<Tensor<D>>) -> Option<Tensor<D>> {
        match (self.flat.remove(&id), self.shapes.remove(&id)) {
            (Some(flat), Some(shape)) => Some(flat.reshape(Shape::from(shape))),
            _ => kept,
        }
    }
}

/// Puts gradients in the place of those that were taken.
pub(super) struct PutGrads(pub HashMap<ParamId, DispatchTensor>);

impl Visit for PutGrads {
    fn visit<const D: usize>(&mut self, id: ParamId, kept: Option<Tensor<D>>) -> Option<Tensor<D>> {
        self.0.remove(&id).map(Tensor::from_dispatch).or(kept)
    }
}

/// Takes the gradients to cast, by the dtype that they are cast to.
pub(super) struct Narrow<'a, F> {
    pub divides: bool,
    pub dtype_of: F,
    pub found: Vec<(FloatDType, Vec<(ParamId, DispatchTensor)>)>,
    /// Those whose cast may wait stay where they are, and are listed here.
    pub owed: &'a mut Vec<HalfGradient>,
}

impl<F: Fn(ParamId) -> Option<FloatDType>> Visit for Narrow<'_, F> {
    fn visit<const D: usize>(&mut self, id: ParamId, grad: Option<Tensor<D>>) -> Option<Tensor<D>> {
        let grad = grad?;
        let Some(dtype) = (self.dtype_of)(id).filter(|dtype| self.divides || grad.dtype() != (*dtype).into())
        else {
            return Some(grad);
        };
        if let Some(owed) = HalfGradient::of::<D>(id, grad.dtype(), dtype).filter(|_| !self.divides) {
            self.owed.push(owed);
            return Some(grad);
        }
        let grad = (id, grad.into_dispatch());
        match self.found.iter_mut().find(|(known, _)| *known == dtype) {
            Some((_, grads)) => grads.push(grad),
            None => self.found.push((dtype, vec![grad])),
        }
        None
    }
}

/// Takes the gradients that both parts of a step have. Those of one part alone are cast, and stay.
pub(super) struct Pairs {
    pub earlier: GradientsParams,
    pub dtype: FloatDType,
    pub ids: Vec<ParamId>,
    pub both: [Vec<DispatchTensor>; 2],
}

impl Visit for Pairs {
    fn visit<const D: usize>(&mut self, id: ParamId, grad: Option<Tensor<D>>) -> Option<Tensor<D>> {
        match (self.earlier.remove::<D>(id), grad) {
            (Some(earlier), Some(grad)) => {
                self.ids.push(id);
                self.both[0].push(earlier.into_dispatch());
                self.both[1].push(grad.into_dispatch());
                None
            }
            (earlier, grad) => Some(earlier.or(grad)?.cast(self.dtype)),
        }
    }
}
