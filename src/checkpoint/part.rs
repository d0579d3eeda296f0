//! The gradients of some parameters: an update in parts.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use firebrick_strategies::AnyParam;

/// The gradients of some parameters, which are updated together.
#[derive(Default)]
pub(crate) struct Part {
    /// The parameters, each once, in the order of the model.
    pub params: Vec<ParamId>,
    pub grads: GradientsParams,
}

/// Splits gradients by the bucket of their parameter. `bucket_of` sees the parameters that have a gradient, each once, in
/// the order of the model.
pub(crate) fn split<M: Module>(
    model: &M,
    grads: GradientsParams,
    bucket_of: impl FnMut(&dyn AnyParam) -> usize,
) -> BTreeMap<usize, Part> {
    struct Split<F> {
        bucket_of: F,
        grads: GradientsParams,
        parts: BTreeMap<usize, Part>,
    }
    impl<F: FnMut(&dyn AnyParam) -> usize> ModuleVisitor for Split<F> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(grad) = self.grads.remove::<D>(param.id) {
                let part = self.parts.entry((self.bucket_of)(param)).or_default();
                part.params.push(param.id);
                part.grads.register(param.id, grad);
            }
        }
    }
    let mut split = Split { bucket_of, grads, parts: BTreeMap::new() };
    model.visit(&mut split);
    split.parts
}

/// Splits gradients into parts of neighbours whose parameters have at most `most` bytes together, unless one alone has
/// more.
pub(crate) fn split_in<M: Module>(model: &M, grads: GradientsParams, most: usize) -> Vec<Part> {
    let (mut bucket, mut bytes) = (0, 0usize);
    let bucket_of = |param: &dyn AnyParam| {
        if bytes > 0 && bytes.saturating_add(param.bytes()) > most {
            (bucket, bytes) = (bucket + 1, 0);
        }
        bytes = bytes.saturating_add(param.bytes());
        bucket
    };
    split(model, grads, bucket_of).into_values().collect()
}
