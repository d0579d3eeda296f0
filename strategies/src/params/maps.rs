//! Maps over a model's parameters that keep tied parameters tied, and which of them are trained.
//!
//! A tied parameter appears at several places of a model under one id. Burn's mappers visit each place separately, and
//! its optimizer updates only the first one. Without these maps the places would drift apart, or the gradient of one
//! would replace the other's.

use std::any::Any;
use std::collections::{HashMap, HashSet};

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{DType, Device, GradientCheckpointingStrategy, Tensor};
use firebrick_kernels::memory::Beyond;

use crate::each_param;

/// A map over the values of float parameters, for tensors of any rank.
pub trait ParamMap {
    /// Returns the new value of the parameter.
    fn map<const D: usize>(&mut self, id: ParamId, value: Tensor<D>) -> Tensor<D>;

    /// Returns whether to map this parameter if it has no value yet, which initializes it. Under some strategies, a
    /// block's parameters have no value outside their segment.
    fn wakes(&self, _: ParamId) -> bool {
        true
    }
}

/// Maps each distinct float parameter once. All places of a tied parameter receive the same tensor.
pub fn map_params<M: Module>(model: M, map: &mut impl ParamMap) -> M {
    model.map(&mut MapOnce { map, done: HashMap::new() })
}

/// Like [`map_params`], but a parameter that has no value yet still has none: it is mapped when something first reads it. So a
/// model can be moved elsewhere one parameter at a time.
pub(crate) fn map_params_later<M: Module>(model: M, map: impl ParamMap + Clone + Send + Sync + 'static) -> M {
    let mut later = MapLater { now: map.clone(), map, done: HashMap::new(), lazy: HashMap::new() };
    model.map(&mut later)
}

/// Makes every parameter lazy: one that has a value returns it when it is first read.
pub(crate) fn without_values<M: Module>(model: M) -> M {
    struct Later(HashMap<ParamId, Box<dyn Any>>);
    impl ModuleMapper for Later {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            if !param.is_initialized() {
                return param;
            }
            // All places of a tied parameter stay one.
            if let Some(later) =
                self.0.get(&param.id).and_then(|later| later.downcast_ref::<Param<Tensor<D>>>())
            {
                return later.clone();
            }
            let (id, value, mapper) = param.consume();
            let (device, shape, is_trained) = (value.device(), value.shape(), value.is_require_grad());
            let later = Param::uninitialized(id, move |_: &Device, _| value, device, is_trained, shape);
            let (load, save) = (mapper.clone(), mapper);
            let later = later
                .load_mapper(move |value| load.on_load(value))
                .save_mapper(move |value| save.on_save(value));
            self.0.insert(id, Box::new(later.clone()));
            later
        }
    }
    model.map(&mut Later(HashMap::new()))
}

struct MapLater<F> {
    map: F,
    now: F,
    done: HashMap<ParamId, Box<dyn Any>>,
    /// The parameters without a value, so that all places of a tied one receive the same tensor.
    lazy: HashMap<ParamId, Box<dyn Any>>,
}

impl<F: ParamMap + Clone + Send + Sync + 'static> ModuleMapper for MapLater<F> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if param.is_initialized() {
            let done = std::mem::take(&mut self.done);
            let mut once = MapOnce { map: &mut self.now, done };
            let mapped = once.map_float(param);
            self.done = once.done;
            return mapped;
        }
        let id = param.id;
        if let Some(known) = self.lazy.get(&id).and_then(|known| known.downcast_ref::<Param<Tensor<D>>>()) {
            return known.clone();
        }
        let map = self.map.clone();
        let mapped = param.init_mapper(move |value| {
            // The parameters outlive the pass that reads them.
            let device = value.device();
            device
                .memory_persistent_allocations(value, |value| Beyond::without(|| map.clone().map(id, value)))
        });
        self.lazy.insert(id, Box::new(mapped.clone()));
        mapped
    }
}

struct MapOnce<'a, F> {
    map: &'a mut F,
    done: HashMap<ParamId, Box<dyn Any>>,
}

impl<F: ParamMap> ModuleMapper for MapOnce<'_, F> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if !param.is_initialized() && !self.map.wakes(param.id) {
            return param;
        }
        let (id, value, mapper) = param.consume();
        let known = self.done.get(&id).and_then(|value| value.downcast_ref::<Tensor<D>>());
        let value = match known {
            Some(value) => value.clone(),
            None => self.map.map(id, value),
        };
        self.done.insert(id, Box::new(value.clone()));
        Param::from_mapped_value(id, value, mapper)
    }
}

/// Gives `value`, which belongs to no graph, the autodiff state of `like`: a leaf that requires gradients if `like`
/// does, with the same checkpointing strategy.
pub fn relift<const D: usize>(value: Tensor<D>, like: &Tensor<D>) -> Tensor<D> {
    Lifting::of(like).lift(value)
}

/// The autodiff state of a parameter, without its value.
#[derive(Clone, Debug)]
pub(crate) struct Lifting {
    is_autodiff: bool,
    is_trained: bool,
    checkpointing: Option<GradientCheckpointingStrategy>,
}

impl Lifting {
    pub fn of<const D: usize>(like: &Tensor<D>) -> Self {
        Self {
            is_autodiff: like.device().is_autodiff(),
            is_trained: like.is_require_grad(),
            checkpointing: like.gradient_checkpointing_strategy(),
        }
    }

    /// See [`relift`].
    pub fn lift<const D: usize>(&self, value: Tensor<D>) -> Tensor<D> {
        if !self.is_autodiff {
            return value;
        }
        let mut leaf = Tensor::from_inner(value);
        if let Some(strategy) = self.checkpointing {
            leaf = leaf.with_gradient_checkpointing_strategy(strategy);
        }
        leaf.set_require_grad(self.is_trained)
    }
}

/// Separates a lazy parameter from its clones, which share its initializer and would all get a setting made on one of
/// them. Does not initialize it.
pub fn apart<const D: usize>(param: Param<Tensor<D>>) -> Param<Tensor<D>> {
    if param.is_initialized() { param } else { param.init_mapper(|value| value) }
}

/// Initializes lazy parameters.
pub(crate) fn wake<M: Module>(model: &M) {
    each_param(model, |param| {
        param.value();
    });
}

/// Returns whether some parameter appears at more than one place of the model.
pub fn tied<M: Module>(model: &M) -> bool {
    let (mut seen, mut tied) = (HashSet::new(), false);
    each_param(model, |param| tied |= !seen.insert(param.id()));
    tied
}

/// A parameter that requires a gradient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trained {
    /// Its id, the same at every place of a tied parameter.
    pub id: ParamId,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its dtype.
    pub dtype: DType,
}

/// Returns the parameters that require a gradient, each once, in the order of the model. Initializes lazy parameters.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::Device};
/// use firebrick_strategies::trained;
///
/// let linear = LinearConfig::new(3, 2).with_bias(false).init(&Device::flex().autodiff());
/// let model = vec![linear.clone(), linear];
/// assert_eq!(trained(&model)[0].shape, [3, 2]);
/// assert_eq!(trained(&model).len(), 1);
/// ```
pub fn trained<M: Module>(model: &M) -> Vec<Trained> {
    trained_of(model, true)
}

/// Like [`trained`], without parameters that have no value: under some strategies they are elsewhere.
pub fn trained_here<M: Module>(model: &M) -> Vec<Trained> {
    trained_of(model, false)
}

fn trained_of<M: Module>(model: &M, wakes: bool) -> Vec<Trained> {
    let (mut seen, mut trained) = (HashSet::new(), Vec::new());
    each_param(model, |param| {
        if (wakes || param.is_initialized()) && param.requires_grad() && seen.insert(param.id()) {
            trained.push(Trained { id: param.id(), shape: param.shape(), dtype: param.dtype() });
        }
    });
    trained
}

/// Gives parameters other values, each flat and outside autodiff. All places of a tied parameter receive the same tensor.
/// The other parameters stay as they are, also if they have no value yet.
pub fn with_values<M: Module>(model: M, flat: HashMap<ParamId, Tensor<1>>) -> M {
    struct WithValues(HashMap<ParamId, Tensor<1>>);
    impl ParamMap for WithValues {
        fn map<const D: usize>(&mut self, id: ParamId, value: Tensor<D>) -> Tensor<D> {
            match self.0.remove(&id) {
                Some(flat) => relift(flat.reshape(value.dims()), &value),
                None => value,
            }
        }

        fn wakes(&self, _: ParamId) -> bool {
            false
        }
    }
    map_params(model, &mut WithValues(flat))
}

/// Gives every place of a tied parameter the tensor of its first place.
pub fn tie<M: Module>(model: M) -> M {
    struct Keep;
    impl ParamMap for Keep {
        fn map<const D: usize>(&mut self, _: ParamId, value: Tensor<D>) -> Tensor<D> {
            value
        }
    }
    map_params(model, &mut Keep)
}

/// Keeps the tensor of a tied parameter at its first place only, so that an optimizer can update it in place. The other
/// places hold a stand-in of the same shape until [`tie`] restores the tensor.
pub fn untie<M: Module>(model: M) -> M {
    struct First(HashSet<ParamId>);
    impl ModuleMapper for First {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let (id, value, mapper) = param.consume();
            let value = match self.0.insert(id) {
                true => value,
                false => {
                    let zero = Tensor::<D>::zeros([1; D], (&value.device().inner(), value.dtype()));
                    relift(zero.expand(value.dims()), &value)
                }
            };
            Param::from_mapped_value(id, value, mapper)
        }
    }
    model.map(&mut First(HashSet::new()))
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};

    use super::*;
    use crate::testing;

    struct Double;
    impl ParamMap for Double {
        fn map<const D: usize>(&mut self, _: ParamId, value: Tensor<D>) -> Tensor<D> {
            relift(value.clone().inner() * 2.0, &value)
        }
    }

    fn twins() -> Vec<Linear> {
        let linear = LinearConfig::new(2, 2).init(&testing::device().autodiff());
        vec![linear.clone(), linear]
    }

    fn values(linear: &Linear) -> Vec<f32> {
        linear.weight.val().into_data().try_to_vec().unwrap()
    }

    #[test]
    fn a_tied_parameter_is_mapped_once_and_stays_one_leaf() {
        let model = twins();
        let before = values(&model[0]);
        let model = map_params(model, &mut Double);
        let doubled: Vec<f32> = before.iter().map(|x| x * 2.0).collect();
        assert_eq!(values(&model[0]), doubled);
        assert_eq!(values(&model[1]), doubled);

        // There is one leaf: the gradient at the second place includes both uses.
        let x = Tensor::<2>::ones([1, 2], &testing::device().autodiff());
        let y = model[1].forward(model[0].forward(x));
        let grads = y.sum().backward();
        let [a, b] = [0, 1].map(|i| model[i].weight.grad(&grads).unwrap().into_data());
        assert_eq!(a, b);
    }

    #[test]
    fn a_parameter_without_a_value_is_mapped_when_it_is_read() {
        #[derive(Clone)]
        struct Twice;
        impl ParamMap for Twice {
            fn map<const D: usize>(&mut self, id: ParamId, value: Tensor<D>) -> Tensor<D> {
                Double.map(id, value)
            }
        }
        let device = testing::device().autodiff();
        let lazy: Linear = LinearConfig::new(2, 2).with_bias(false).init(&device);
        let (known, frozen) = (twins().remove(0), LinearConfig::new(2, 2).init(&device).no_grad());
        let model = map_params_later(vec![lazy.clone(), lazy.clone(), known.clone(), frozen], Twice);
        assert!(!model[0].weight.is_initialized() && !lazy.weight.is_initialized());
        assert!(!model[3].weight.is_initialized());
        let doubled = |linear: &Linear| values(linear).iter().map(|x| x * 2.0).collect::<Vec<_>>();
        assert_eq!(values(&model[2]), doubled(&known));
        assert_eq!(values(&model[0]), doubled(&lazy));
        assert_eq!(values(&model[1]), doubled(&lazy));
        assert!(model[0].weight.is_require_grad() && !model[3].weight.is_require_grad());
    }

    #[test]
    fn a_frozen_parameter_stays_frozen() {
        let frozen = twins().remove(0).no_grad();
        let mapped = map_params(frozen, &mut Double);
        assert!(!mapped.weight.is_require_grad());
        assert!(!mapped.train().weight.is_require_grad());
    }

    #[test]
    fn trained_is_what_has_a_gradient_once() {
        let device = testing::device().autodiff();
        let lazy: Linear = LinearConfig::new(4, 1).with_bias(false).init(&device);
        let [first, again] = [twins(), twins()].map(|mut twins| twins.remove(0));
        let model = vec![first.clone(), again.clone().no_grad(), lazy.clone(), first.clone()];
        let ids = |found: Vec<Trained>| found.into_iter().map(|one| one.id).collect::<Vec<_>>();
        let of = |linear: &Linear| vec![linear.weight.id, linear.bias.as_ref().unwrap().id];
        assert!(!lazy.weight.is_initialized());
        map_params(first.clone(), &mut Double);
        assert_eq!(ids(trained_here(&model)), of(&first));
        assert_eq!(ids(trained(&model)), [of(&first), vec![lazy.weight.id]].concat());
        assert_eq!(trained(&lazy)[0], Trained { id: lazy.weight.id, shape: vec![4, 1], dtype: DType::F32 });
    }

    #[test]
    fn ties_are_found_and_restored() {
        let mut model = twins();
        assert!(tied(&model));
        let id = model[0].weight.id;
        let device = testing::device().autodiff();
        model[0].weight = Param::initialized(id, Tensor::ones([2, 2], &device).require_grad());
        let model = tie(model);
        assert_eq!(values(&model[1]), [1.0; 4]);
        let loose = untie(model);
        assert_eq!([values(&loose[0]), values(&loose[1])], [[1.0; 4], [0.0; 4]]);
        assert!(tied(&loose) && loose[1].weight.is_require_grad());
        assert_eq!(values(&tie(loose)[1]), [1.0; 4]);
        assert!(!tied(&LinearConfig::new(2, 2).init(&device)));
    }
}
