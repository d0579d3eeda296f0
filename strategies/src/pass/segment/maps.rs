//! Maps over all tensors of a segment's inputs, outputs and block.

use burn::module::{ModuleVisitor, Param, ParamId};
use burn::tensor::{Bool, Device, Int, Tensor};
use firebrick_world::on_host;

use super::{Bundle, TensorMap};
use crate::ParamMap;

/// The inputs and parameters that need a gradient.
#[derive(Clone, Default)]
pub struct WantedGradients {
    pub inputs: Vec<bool>,
    pub parameters: Vec<ParamId>,
}

impl WantedGradients {
    pub fn is_empty(&self) -> bool {
        self.parameters.is_empty() && !self.inputs.contains(&true)
    }
}

impl TensorMap for WantedGradients {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.inputs.push(tensor.is_tracked());
        tensor
    }
}

impl ModuleVisitor for WantedGradients {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // A parameter that is tied within the block has one gradient.
        if param.is_initialized() && param.base().is_tracked() && !self.parameters.contains(&param.id) {
            self.parameters.push(param.id);
        }
    }
}

/// Takes tensors out of autodiff.
pub struct Inner;

impl TensorMap for Inner {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        tensor.inner()
    }

    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        tensor.inner()
    }

    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        tensor.inner()
    }
}

impl ParamMap for Inner {
    fn map<const D: usize>(&mut self, _: ParamId, value: Tensor<D>) -> Tensor<D> {
        value.inner()
    }

    fn wakes(&self, _: ParamId) -> bool {
        false
    }
}

/// Moves float tensors to the host. Masks and indices stay, because all blocks share them.
pub struct PutAway<'a>(pub &'a Device);

impl TensorMap for PutAway<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        if tensor.device() == *self.0 {
            return tensor;
        }
        let dtype = tensor.dtype();
        Tensor::from_data(on_host(tensor), (self.0, dtype))
    }
}

/// Moves float tensors to a device.
pub struct Fetch<'a>(pub &'a Device);

impl TensorMap for Fetch<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        tensor.to_device(self.0)
    }
}

/// Returns the sizes of all axes of a bundle's float tensors.
pub fn shape_of<X: Bundle>(bundle: &X) -> Vec<usize> {
    struct Axes(Vec<usize>);
    impl TensorMap for Axes {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            self.0.extend(tensor.dims());
            tensor
        }
    }
    let mut axes = Axes(Vec::new());
    bundle.clone().map_tensors(&mut axes);
    axes.0
}

/// Returns the bytes of a bundle's float tensors.
pub fn bytes_of<X: Bundle>(bundle: &X) -> usize {
    struct Bytes(usize);
    impl TensorMap for Bytes {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            self.0 += tensor.shape().num_elements() * tensor.dtype().size();
            tensor
        }
    }
    let mut bytes = Bytes(0);
    bundle.clone().map_tensors(&mut bytes);
    bytes.0
}
