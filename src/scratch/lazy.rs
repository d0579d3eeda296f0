//! Models whose parameters wait on a disk: without their values, with stand-ins for them, and with some of them.
//!
//! | | what a parameter that waits has | reading it |
//! |---|---|---|
//! | [`renewed`](DiskParams::renewed) | an initializer | reads the disk, and the value stays in memory until the next renewal |
//! | [`outline`](DiskParams::outline) | zeros that take no memory, with the dtype, shape and setting of the value | is wrong |

use std::any::Any;
use std::collections::{HashMap, HashSet};

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{Tensor, TensorData};
use firebrick_strategies::relift;
use firebrick_world::on_host;

use super::disk_params::{DiskParams, Values};
use super::stand_in::stand_in;

impl DiskParams {
    /// Returns the model with initializers of the values as they are now, for the parameters that wait and are `wanted`.
    /// Values that were read before are dropped.
    pub fn renewed<M: Module>(&self, model: M, values: Values, wanted: impl Fn(ParamId) -> bool) -> M {
        model.map(&mut Renew { offloaded: self, values, wanted, done: HashMap::new() })
    }

    /// Returns the model with stand-ins for the parameters that wait and have no value, for all that reads dtypes and
    /// settings alone. With `all`, those that have a value lose it.
    pub fn outline<M: Module>(&self, model: M, values: Values, all: bool) -> M {
        model.map(&mut Outline { offloaded: self, values, all })
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
    offloaded: &'a DiskParams,
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
        let lazy = done.cloned().or_else(|| self.offloaded.lazy(id, self.values, param.lazy_device()));
        let Some(lazy) = lazy else { return param };
        self.done.entry(id).or_insert_with(|| Box::new(lazy.clone()));
        lazy
    }
}

struct Outline<'a> {
    offloaded: &'a DiskParams,
    values: Values,
    all: bool,
}

impl ModuleMapper for Outline<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if param.is_initialized() && !self.all {
            return param;
        }
        let Some((dtype, is_trained)) = self.offloaded.dtype(param.id, self.values) else { return param };
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
mod tests {
    use std::sync::Arc;

    use burn::nn::{Linear, LinearConfig, LinearLayout};
    use burn::tensor::Device;
    use firebrick_strategies::{OffloadedParams, tied};

    use super::*;
    use crate::scratch::{NewValues, ScratchFile, Stored};

    fn linear(device: &Device) -> Linear {
        LinearConfig::new(3, 2).init(device)
    }

    fn values<const D: usize>(param: &Param<Tensor<D>>) -> Vec<f32> {
        param.base().into_data().try_to_vec().unwrap()
    }

    /// Offloads all parameters of a model.
    fn offloaded<M: Module>(model: M) -> (Arc<ScratchFile>, Arc<DiskParams>, M) {
        let folder = tempfile::tempdir().unwrap();
        let file = ScratchFile::create(folder.path(), 0).unwrap();
        let (offloaded, model) = DiskParams::offload(&file, model, |_| true).unwrap();
        (file, offloaded, model)
    }

    fn read_bytes(file: &ScratchFile) -> u64 {
        file.moved()[0].0
    }

    #[test]
    fn a_parameter_that_waits_is_what_it_was_wherever_it_is_read() {
        let device = Device::flex().autodiff();
        let (first, frozen) = (linear(&device), linear(&device).no_grad());
        let expected = [values(&first.weight), values(&frozen.weight)];
        let (file, offloaded, model) = offloaded(vec![first.clone(), first, frozen]);
        assert!(model.iter().all(|linear| !linear.weight.is_initialized()) && tied(&model));
        assert_eq!(read_bytes(&file), 0);
        assert_eq!(values(&model[1].weight), expected[0]);
        assert!(model[0].weight.is_initialized(), "it is read once for both places");
        assert_eq!(values(&model[2].weight), expected[1]);
        assert_eq!(read_bytes(&file), 2 * 4096);
        assert!(model[0].weight.is_require_grad() && !model[2].weight.is_require_grad());
        assert!(model[0].weight.val().device().is_autodiff());
        let model = offloaded.renewed(model, Values::Master, |_| true);
        assert!(model.iter().all(|linear| !linear.weight.is_initialized()) && tied(&model));
    }

    #[test]
    fn nothing_is_read_of_an_outline_or_in_validation_mode() {
        let device = Device::flex().autodiff();
        let (file, offloaded, model) = offloaded(vec![linear(&device), linear(&device).no_grad()]);
        let outline = offloaded.outline(model.clone(), Values::Master, true);
        let weight = outline[0].weight.base();
        assert_eq!((weight.dims(), weight.is_require_grad()), ([3, 2], true));
        assert!(!outline[1].weight.base().is_require_grad());
        let valid = offloaded.valid(&model, Values::Master);
        assert!(!valid[0].weight.is_initialized() && !valid[0].weight.lazy_device().is_autodiff());
        assert_eq!(read_bytes(&file), 0);
        assert!(!valid[0].weight.val().is_require_grad());
        let train = valid.train();
        assert!(train[0].weight.is_require_grad() && !train[1].weight.is_require_grad());
        assert_eq!(values(&train[0].weight), values(&model[0].weight));
    }

    #[test]
    fn what_is_set_for_a_parameter_survives() {
        let config = LinearConfig::new(3, 2).with_layout(LinearLayout::Col).with_bias(false);
        let model = config.init(&Device::flex().autodiff());
        let saved = |model: &Linear| model.weight.transform_for_save().val().into_data();
        let expected = saved(&model);
        let (_file, offloaded, mut model) = offloaded(model);
        for _ in 0..3 {
            assert_eq!(saved(&model), expected);
            let outline = offloaded.outline(model, Values::Master, true);
            model = offloaded.renewed(outline, Values::Master, |_| true);
        }
    }

    #[test]
    fn an_update_leaves_the_values_that_something_may_still_read() {
        let (file, offloaded, model) = offloaded(linear(&Device::flex().autodiff()));
        let (id, before) = (model.weight.id, values(&model.weight));
        let model = offloaded.renewed(model, Values::Master, |_| true);
        let bytes = file.bytes();
        let put = |value: f32, replica: Option<Tensor<1>>| {
            let master = TensorData::new(vec![value; 6], [3, 2]);
            offloaded.put(vec![NewValues { id, master, replica }]).unwrap();
        };
        put(7.0, None);
        assert_eq!(file.bytes(), bytes + 4096);
        assert_eq!(values(&model.weight), before, "it was made before");
        let model = offloaded.renewed(model, Values::Master, |_| true);
        assert_eq!(values(&model.weight), [7.0; 6]);
        // The same tensor is not written twice, another is.
        let of = |value: f32| Some(Tensor::<1>::full([6], value, &Device::flex()));
        put(8.0, of(8.0));
        assert_eq!(offloaded.bytes(), 6 * 4 + 2 * 4);
        put(9.0, of(1.0));
        assert_eq!(offloaded.bytes(), 6 * 4 + 6 * 4 + 2 * 4);
        let replica = offloaded.renewed(model.clone(), Values::Replica, |_| true);
        let master = offloaded.renewed(model, Values::Master, |_| true);
        assert_eq!((values(&replica.weight), values(&master.weight)), (vec![1.0; 6], vec![9.0; 6]));
        let read = offloaded.begin_read(&[id]).wait().unwrap();
        assert_eq!(read[0].to_data(), Tensor::<1>::full([6], 1.0, &Device::flex()).to_data());
        assert!(Stored::read(&[&offloaded.stored(id, Values::Master).unwrap()]).is_ok());
    }
}
