//! Casts that wait until something needs the gradient's dtype.

use burn::backend::DispatchTensor;
use burn::module::ParamId;
use burn::optim::GradientsParams;
use burn::tensor::{DType, FloatDType, Tensor};
use firebrick_kernels::cast_all;

use super::Grads;

/// A gradient that counts as one in f32, and is still in half precision.
pub(super) struct HalfGradient {
    pub id: ParamId,
    /// Takes the gradient, of the rank that it has.
    take: fn(&mut GradientsParams, ParamId) -> Option<DispatchTensor>,
    put: fn(&mut GradientsParams, ParamId, DispatchTensor),
}

impl HalfGradient {
    /// Returns what is owed for a gradient of `D` axes, if a cast between these dtypes may wait: whoever widens a number later
    /// reads the same.
    pub fn of<const D: usize>(id: ParamId, from: DType, to: FloatDType) -> Option<Self> {
        let may_wait = matches!(from, DType::BF16 | DType::F16) && to == FloatDType::F32;
        may_wait.then_some(Self {
            id,
            take: |params, id| params.remove::<D>(id).map(Tensor::into_dispatch),
            put: |params, id, grad| params.register::<D>(id, Tensor::from_dispatch(grad)),
        })
    }
}

impl Grads {
    /// Makes the casts that were left for later.
    pub(super) fn pay(&mut self) {
        let owed = std::mem::take(&mut self.owed);
        let take = |owed: HalfGradient| Some(((owed.take)(&mut self.params, owed.id)?, owed));
        let (grads, owed): (Vec<_>, Vec<_>) = owed.into_iter().filter_map(take).unzip();
        for (HalfGradient { id, put, .. }, grad) in
            std::iter::zip(owed, cast_all(grads, FloatDType::F32, 1.0))
        {
            put(&mut self.params, id, grad);
        }
    }
}
