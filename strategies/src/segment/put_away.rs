//! Takes the parameters of blocks that are stored elsewhere out of the model of a pass.

use burn::module::{ModuleMapper, Param};
use burn::tensor::{Device, Shape, Tensor};

use super::entered::{Entered, Stored};
use crate::{ParkedParam, StrategyError};

/// Takes the parameters out of blocks.
pub(super) struct PutAway<'a>(pub &'a mut Entered);

impl ModuleMapper for PutAway<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let entered = &mut *self.0;
        let handling = entered.plan.handling();
        let Some(unit) = handling.units.of_param(param.id).filter(|_| handling.is_away(param.id)) else {
            // From here on, a parameter without a value is stored elsewhere.
            param.base();
            return param;
        };
        let id = param.id;
        let parked = (!param.is_initialized()).then(|| handling.parked(id)).flatten();
        let (mut shape, dtype, is_trained, value) = match parked {
            Some(ParkedParam { shape, dtype, is_trained }) => {
                (shape, dtype, is_trained && entered.device.is_autodiff(), None)
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
        let plan = entered.plan.clone();
        if !entered.stored.contains_key(&id) {
            entered.members[unit].push(id);
            entered.stored.insert(id, Stored { shape: shape.clone(), dtype, is_trained, value });
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
        Param::uninitialized(id, outside, entered.device.clone(), is_trained, lazy_shape)
    }
}
