//! Takes the parameters of blocks that are stored elsewhere out of the model of a pass.

use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{ModuleMapper, Param, ParamId};
use burn::tensor::{DType, Device, Shape, Tensor};

use super::offloaded::OffloadedParam;
use super::plan::SegmentPlan;
use crate::StrategyError;

/// A parameter that is stored elsewhere than where the pass computes.
pub(super) struct Stored {
    pub shape: Vec<usize>,
    pub dtype: DType,
    pub is_trained: bool,
    /// Flat: the whole parameter, or this rank's shard. `None` if it waits outside memory.
    pub value: Option<Tensor<1>>,
}

/// Takes the parameters out of blocks.
pub(super) struct PutAway<'a> {
    plan: &'a Arc<SegmentPlan>,
    device: &'a Device,
    pub stored: HashMap<ParamId, Stored>,
    /// The parameters of each unit, in the order of the model.
    pub members: Vec<Vec<ParamId>>,
}

impl<'a> PutAway<'a> {
    pub fn new(plan: &'a Arc<SegmentPlan>, device: &'a Device) -> Self {
        let members = vec![Vec::new(); plan.handling().units.count()];
        Self { plan, device, stored: HashMap::new(), members }
    }
}

impl ModuleMapper for PutAway<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let handling = self.plan.handling();
        let Some(unit) = handling.units.of_param(param.id).filter(|_| handling.is_away(param.id)) else {
            // From here on, a parameter without a value is stored elsewhere.
            param.base();
            return param;
        };
        let id = param.id;
        let offloaded = (!param.is_initialized()).then(|| handling.offloaded(id)).flatten();
        let (mut shape, dtype, is_trained, value) = match offloaded {
            Some(OffloadedParam { shape, dtype, is_trained }) => {
                (shape, dtype, is_trained && self.device.is_autodiff(), None)
            }
            None => {
                let value = param.base();
                let (dtype, is_trained) = (value.dtype(), value.is_require_grad());
                (value.dims().to_vec(), dtype, is_trained, Some(value.inner().reshape([-1])))
            }
        };
        let rows = handling.sharding.as_ref().filter(|_| handling.gathers).and_then(|shards| shards.rows(id));
        if let Some(rows) = rows {
            shape[0] = rows.rows();
        }
        let plan = self.plan.clone();
        if !self.stored.contains_key(&id) {
            self.members[unit].push(id);
            self.stored.insert(id, Stored { shape: shape.clone(), dtype, is_trained, value });
        }
        let shape = Shape::from(shape);
        let lazy_shape = shape.clone();
        // Only code outside the segment reads this value.
        let outside = move |device: &Device, _: bool| {
            plan.report(StrategyError::OutsideSegment {
                parameter: plan.paths().path(id).unwrap_or("a parameter").into(),
            });
            Tensor::<D>::zeros(shape, (device, dtype))
        };
        Param::uninitialized(id, outside, self.device.clone(), is_trained, lazy_shape)
    }
}
