//! A look at each float parameter of a model, whatever its rank.

use std::collections::HashSet;

use burn::backend::DispatchTensor;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, Device, Tensor, TensorData};
use firebrick_world::{all_on_host, on_host};

/// A float parameter of any rank.
pub trait AnyParam {
    /// Returns its id, which is the same at every place of a tied parameter.
    fn id(&self) -> ParamId;

    /// Returns its shape. Does not initialize a lazy parameter.
    fn shape(&self) -> Vec<usize>;

    /// Returns whether it has a value. A lazy parameter gets one when it is first read.
    fn is_initialized(&self) -> bool;

    /// Returns whether it requires a gradient in [training](learns). Does not initialize a lazy parameter.
    fn learns(&self) -> bool;

    /// Returns whether its value is a leaf that requires a gradient. Initializes a lazy parameter.
    fn requires_grad(&self) -> bool;

    /// Returns whether its value is part of a graph. Initializes a lazy parameter.
    fn is_tracked(&self) -> bool;

    /// Returns the dtype of its value. Initializes a lazy parameter.
    fn dtype(&self) -> DType;

    /// Returns the device of its value, without autodiff. Initializes a lazy parameter.
    fn device(&self) -> Device;

    /// Returns its value, outside autodiff. Initializes a lazy parameter.
    fn value(&self) -> DispatchTensor;

    /// Returns its value, flat and outside autodiff. Initializes a lazy parameter.
    fn flat(&self) -> Tensor<1>;

    /// Copies its value to the host. Initializes a lazy parameter.
    fn to_host(&self) -> TensorData;
}

impl dyn AnyParam + '_ {
    /// Returns the bytes of its value. Initializes a lazy parameter.
    pub fn bytes(&self) -> usize {
        self.shape().iter().product::<usize>() * self.dtype().size()
    }
}

impl<const D: usize> AnyParam for Param<Tensor<D>> {
    fn id(&self) -> ParamId {
        self.id
    }

    fn shape(&self) -> Vec<usize> {
        self.lazy_shape().to_vec()
    }

    fn is_initialized(&self) -> bool {
        self.is_initialized()
    }

    fn learns(&self) -> bool {
        learns(self)
    }

    fn requires_grad(&self) -> bool {
        self.base().is_require_grad()
    }

    fn is_tracked(&self) -> bool {
        self.base().is_tracked()
    }

    fn dtype(&self) -> DType {
        self.base().dtype()
    }

    fn device(&self) -> Device {
        self.base().device().inner()
    }

    fn value(&self) -> DispatchTensor {
        self.base().inner().into_dispatch()
    }

    fn flat(&self) -> Tensor<1> {
        self.base().inner().reshape([-1])
    }

    fn to_host(&self) -> TensorData {
        on_host(self.base())
    }
}

/// Copies the value of each distinct parameter that is `wanted` to the host, and calls `use_it` in the order of the model.
/// It waits for a device once for [many parameters](all_on_host), not once for each.
pub fn values_on_host<M: Module>(
    model: &M,
    wanted: impl Fn(ParamId) -> bool,
    mut use_it: impl FnMut(ParamId, TensorData),
) {
    let (mut ids, mut values) = (Vec::new(), Vec::new());
    each_distinct_param(model, |param| {
        if wanted(param.id()) {
            ids.push(param.id());
            values.push(param.value());
        }
    });
    ids.into_iter().zip(all_on_host(values)).for_each(|(id, data)| use_it(id, data));
}

/// Returns whether the parameter requires a gradient in training. Does not initialize a lazy parameter.
pub fn learns<const D: usize>(param: &Param<Tensor<D>>) -> bool {
    if param.is_initialized() {
        return param.base().is_require_grad();
    }
    let number = Tensor::zeros([1; D], &param.lazy_device().inner());
    // A lazy parameter's replacement inherits its setting, which training mode then applies.
    param.clone().transform_for_load(number, param.id).train().is_require_grad()
}

/// Calls `look` with each float parameter, in the order of the model. A tied parameter comes once for each of its
/// places.
///
/// ```
/// use burn::{nn::LinearConfig, tensor::Device};
/// use firebrick_strategies::each_param;
///
/// let linear = LinearConfig::new(3, 2).init(&Device::flex());
/// let mut shapes = Vec::new();
/// each_param(&linear, |param| shapes.push(param.shape()));
/// assert_eq!(shapes, [vec![3, 2], vec![2]]);
/// ```
pub fn each_param<M: Module>(model: &M, look: impl FnMut(&dyn AnyParam)) {
    struct Each<F>(F);
    impl<F: FnMut(&dyn AnyParam)> ModuleVisitor for Each<F> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            (self.0)(param);
        }
    }
    model.visit(&mut Each(look));
}

/// Like [`each_param`], with a tied parameter at its first place only.
pub fn each_distinct_param<M: Module>(model: &M, mut look: impl FnMut(&dyn AnyParam)) {
    let mut seen = HashSet::new();
    each_param(model, |param| {
        if seen.insert(param.id()) {
            look(param);
        }
    });
}
