//! Tensors from outside autodiff as constants of a pass.

use burn::module::ParamId;
use burn::tensor::Tensor;

use super::bundle::TensorMap;
use crate::{ParamMap, Pass};

/// Makes tensors outside autodiff constants of the pass.
pub struct Constant<'a>(pub &'a Pass);

impl TensorMap for Constant<'_> {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        self.0.lift(tensor)
    }
}

impl ParamMap for Constant<'_> {
    fn map<const D: usize>(&mut self, _: ParamId, value: Tensor<D>) -> Tensor<D> {
        self.0.lift(value)
    }

    fn wakes(&self, _: ParamId) -> bool {
        false
    }
}
