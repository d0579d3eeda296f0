//! Prepares a model for one rank: with its own leaves, and on the rank's device except for the parameters.

use std::any::Any;
use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{Device, Tensor};
use firebrick_strategies::{apart, relift};

/// Moves the model to the device, if there is one, but leaves its float parameters where they are, shared with every
/// other holder of the model, since the device may be too small for them. The leaves are new.
pub(super) fn for_rank<M: Module>(model: M, device: Option<&Device>) -> M {
    let Some(device) = device else { return model };
    let mut taken = TakeParams(HashMap::new());
    let hollow = model.map(&mut taken).fork(device);
    hollow.map(&mut PutBack(taken.0))
}

/// Takes the parameters out and leaves a one-element tensor in place of each.
struct TakeParams(HashMap<ParamId, Box<dyn Any>>);

impl ModuleMapper for TakeParams {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let number = Tensor::<D>::zeros([1; D], &param.lazy_device());
        let (id, number) = (param.id, Param::initialized(param.id, number));
        // A tied parameter is visited several times and keeps the same leaf at each of its places.
        self.0.entry(id).or_insert_with(|| {
            // A lazily initialized parameter stays uninitialized.
            Box::new(apart(match param.is_initialized() {
                true => param.map(|value| relift(value.clone().inner(), &value)),
                false => param,
            }))
        });
        number
    }
}

/// Puts the parameters back.
struct PutBack(HashMap<ParamId, Box<dyn Any>>);

impl ModuleMapper for PutBack {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let taken = self.0.get(&param.id).and_then(|taken| taken.downcast_ref::<Param<Tensor<D>>>());
        taken.cloned().unwrap_or(param)
    }
}

#[cfg(test)]
mod tests {
    use burn::nn::{Linear, LinearConfig};

    use super::*;

    #[derive(Module, Debug)]
    struct Masked {
        first: Linear,
        again: Linear,
        frozen: Linear,
        mask: Tensor<1>,
    }

    fn model(device: &Device) -> Masked {
        let first = LinearConfig::new(3, 2).init(device);
        let frozen = LinearConfig::new(3, 2).init(device).no_grad();
        Masked { again: first.clone(), first, frozen, mask: Tensor::ones([2], device) }
    }

    #[test]
    fn each_rank_has_leaves_of_its_own_and_the_numbers_are_shared() {
        let device = Device::flex().autodiff();
        let model = model(&device);
        let values = |model: &Masked| model.first.weight.val().into_data();
        // On the same device, and then as if the device were another one.
        let mut taken = TakeParams(HashMap::new());
        let hollow = model.clone().map(&mut taken);
        assert_eq!(hollow.first.weight.val().dims(), [1, 1]);
        for own in [for_rank(model.clone(), Some(&device)), hollow.map(&mut PutBack(taken.0))] {
            assert_eq!(values(&own), values(&model));
            let mut storages = firebrick_kernels::memory::Storages::new();
            storages.add_model(0, &model);
            storages.add_model(1, &own);
            assert_eq!(storages.charged_to(1), 0);
            assert!(own.first.weight.is_require_grad() && !own.frozen.weight.is_require_grad());
            let x = Tensor::<2>::ones([1, 3], &device);
            let grads = (own.again.forward(x) * own.mask.clone().unsqueeze()).sum().backward();
            assert!(own.again.weight.grad(&grads).is_some());
            assert!(model.first.weight.grad(&grads).is_none());
        }
    }
}
