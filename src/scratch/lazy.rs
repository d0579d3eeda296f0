//! Models whose parameters wait on a disk: without their values, with stand-ins for them, and with some of them.
//!
//! | | what a parameter that waits has | reading it |
//! |---|---|---|
//! | [`renewed`](ParkedParams::renewed) | an initializer | reads the disk, and the value stays in memory until the next renewal |
//! | [`outline`](ParkedParams::outline) | zeros that take no memory, with the dtype, shape and setting of the value | is wrong |

use std::any::Any;
use std::collections::{HashMap, HashSet};

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{Tensor, TensorData};
use firebrick_strategies::relift;
use firebrick_world::on_host;

use super::parked::{ParkedParams, Values};
use super::stand_in::stand_in;

impl ParkedParams {
    /// Returns the model with initializers of the values as they are now, for the parameters that wait and are `wanted`.
    /// Values that were read before are dropped.
    pub fn renewed<M: Module>(&self, model: M, values: Values, wanted: impl Fn(ParamId) -> bool) -> M {
        model.map(&mut Renew { parked: self, values, wanted, done: HashMap::new() })
    }

    /// Returns the model with stand-ins for the parameters that wait and have no value, for all that reads dtypes and
    /// settings alone. With `all`, those that have a value lose it.
    pub fn outline<M: Module>(&self, model: M, values: Values, all: bool) -> M {
        model.map(&mut Outline { parked: self, values, all })
    }

    /// Returns the model in validation mode. Parameters that wait still do.
    pub fn valid<M: Module>(&self, model: &M, values: Values) -> M {
        let mut lazy = HashSet::new();
        firebrick_strategies::each_param(model, |param| {
            if !param.is_initialized() && self.has(param.id()) {
                lazy.insert(param.id());
            }
        });
        let outline = self.outline(model.clone(), values, false).valid();
        self.renewed(outline, values, |id| lazy.contains(&id))
    }

    /// Puts values in place of their stand-ins, each flat. A tied parameter has its value at its first place only, so that an
    /// optimizer can update it in place.
    pub fn put_into<M: Module>(&self, outline: M, values: HashMap<ParamId, Tensor<1>>) -> M {
        outline.map(&mut FlatValues(values))
    }

    /// Takes the values of some parameters that wait out of the model, each once, and leaves stand-ins.
    pub fn take_from<M: Module>(&self, model: M, ids: &[ParamId]) -> (M, Vec<(ParamId, TensorData)>) {
        let ids = ids.iter().copied().filter(|id| self.has(*id)).collect();
        let mut take = Take { ids, taken: Vec::new() };
        let model = model.map(&mut take);
        (model, take.taken)
    }
}

struct Renew<'a, F> {
    parked: &'a ParkedParams,
    values: Values,
    wanted: F,
    /// A tied parameter is read once for all of its places.
    done: HashMap<ParamId, Box<dyn Any>>,
}

impl<F: Fn(ParamId) -> bool> ModuleMapper for Renew<'_, F> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let id = param.id;
        if !(self.wanted)(id) {
            return param;
        }
        let done = self.done.get(&id).and_then(|done| done.downcast_ref::<Param<Tensor<D>>>());
        let lazy = done.cloned().or_else(|| self.parked.lazy(id, self.values, param.lazy_device()));
        let Some(lazy) = lazy else { return param };
        self.done.entry(id).or_insert_with(|| Box::new(lazy.clone()));
        lazy
    }
}

struct Outline<'a> {
    parked: &'a ParkedParams,
    values: Values,
    all: bool,
}

impl ModuleMapper for Outline<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if param.is_initialized() && !self.all {
            return param;
        }
        let Some((dtype, is_trained)) = self.parked.dtype(param.id, self.values) else { return param };
        let (id, device, shape) = (param.id, param.lazy_device(), param.lazy_shape());
        // It keeps what is set for the parameter, and is not initialized.
        let number = stand_in([1; D], &device, dtype, false);
        let loaded = param.transform_for_load(number, id);
        loaded.map(|_| stand_in(shape.dims(), &device, dtype, is_trained))
    }
}

/// Puts values, each flat, in the place of stand-ins.
struct FlatValues(HashMap<ParamId, Tensor<1>>);

impl ModuleMapper for FlatValues {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.0.remove(&param.id) {
            None => param,
            Some(flat) => param.map(|stand_in| relift(flat.reshape(stand_in.dims()), &stand_in)),
        }
    }
}

struct Take {
    ids: HashSet<ParamId>,
    taken: Vec<(ParamId, TensorData)>,
}

impl ModuleMapper for Take {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let id = param.id;
        if !self.ids.remove(&id) {
            return param;
        }
        param.map(|value| {
            let (shape, device, dtype) = (value.dims(), value.device(), value.dtype());
            let left = stand_in(shape, &device, dtype, value.is_require_grad());
            self.taken.push((id, on_host(value)));
            left
        })
    }
}

#[cfg(test)]
#[path = "lazy_tests.rs"]
mod tests;
