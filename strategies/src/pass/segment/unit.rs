//! A block whose parameters are provided for its segment and whose gradients the segment delivers.

use std::collections::HashMap;
use std::sync::Arc;

use burn::backend::DispatchTensor;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Shape, Tensor};

use super::entered::{EnteredModel, Way};
use crate::{Part, each_param};

/// A unit that a segment has reached.
#[derive(Clone)]
pub(crate) struct Unit {
    entered: Arc<EnteredModel>,
    index: usize,
}

impl Unit {
    /// Returns the unit of a block.
    pub fn of<B: Module>(entered: &Arc<EnteredModel>, block: &B) -> Option<Self> {
        let index = entered.handling().units.of_block(block)?;
        Some(Self { entered: entered.clone(), index })
    }

    /// Returns whether its parameters exist only while its segment runs.
    pub fn is_provided(&self) -> bool {
        self.entered.handling().provides()
    }

    /// Returns whether its segment delivers its gradients.
    pub fn is_delivered(&self) -> bool {
        self.entered.handling().delivers()
    }

    /// Returns whether this rank only takes part in the collectives.
    pub fn has_empty_batch(&self) -> bool {
        self.entered.empty_batch
    }

    /// Returns the block with all of its parameters, outside autodiff.
    pub fn provide<B: Module>(&self, block: &B, way: Way) -> B {
        let values = self.entered.bring(self.index, way).unwrap_or_else(|error| {
            self.entered.plan.report(error);
            HashMap::new()
        });
        block.clone().map(&mut Provide { entered: &self.entered, values, done: HashMap::new() })
    }

    /// Returns the gradients that the segment will deliver, still to come: one part for each trained parameter of
    /// this unit.
    pub fn trained<B: Module>(&self, block: &B) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        each_param(block, |param| {
            let id = param.id();
            if !self.entered.delivers(id) || parts.iter().any(|part| part.id == id) {
                return;
            }
            let (shape, dtype) = match self.entered.stored.get(&id) {
                Some(stored) if stored.is_trained => (stored.shape.clone(), stored.dtype),
                None if param.is_tracked() => (param.shape(), param.dtype()),
                _ => return,
            };
            parts.push(Part { id, shape, dtype, grad: None });
        });
        parts
    }

    /// Stores the gradients of a block: summed over the ranks, on the host, or both. Returns their bytes.
    pub fn deliver<B: Module>(
        &self,
        block: &B,
        mut parts: Vec<Part>,
        grads: HashMap<ParamId, DispatchTensor>,
    ) -> usize {
        struct Fill<'a>(&'a mut [Part], HashMap<ParamId, DispatchTensor>);
        impl ModuleVisitor for Fill<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let Some(part) = self.0.iter_mut().find(|part| part.id == param.id)
                    && let Some(grad) = self.1.remove(&param.id)
                {
                    part.add(Tensor::<D>::from_dispatch(grad));
                }
            }
        }
        if !self.has_empty_batch() {
            block.visit(&mut Fill(&mut parts, grads));
        }
        self.entered.deliver(self.index, parts).unwrap_or_else(|error| {
            self.entered.plan.report(error);
            0
        })
    }
}

/// Puts provided parameters into a block.
struct Provide<'a> {
    entered: &'a EnteredModel,
    /// Flat, and with the padding of gathered ones.
    values: HashMap<ParamId, Tensor<1>>,
    /// A tied parameter is one tensor at all of its places.
    done: HashMap<ParamId, DispatchTensor>,
}

impl ModuleMapper for Provide<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let id = param.id;
        let Some(stored) = self.entered.stored.get(&id) else {
            return if param.is_initialized() { param.map(Tensor::inner) } else { param };
        };
        if let Some(done) = self.done.get(&id) {
            return Param::initialized(id, Tensor::from_dispatch(done.clone()));
        }
        let device = self.entered.device.clone().inner();
        let options = (&device, stored.dtype);
        let elements = stored.shape.iter().product();
        let value: Tensor<D> = match self.values.remove(&id) {
            None => Tensor::zeros(stored.shape.clone(), options),
            Some(flat) if flat.dims()[0] == elements => flat.reshape(Shape::from(stored.shape.clone())),
            Some(padded) => padded.narrow(0, 0, elements).reshape(Shape::from(stored.shape.clone())),
        };
        self.done.insert(id, value.clone().into_dispatch());
        Param::initialized(id, value)
    }
}
