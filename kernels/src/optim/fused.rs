//! One update of Flex tensors in one pass.

use std::array::from_fn;

use burn::backend::Flex;
use burn::tensor::{FloatDType, Tensor};

use super::replicas::Replicas;
use super::rule::{Parts, Rule, Update};
use super::slices::{flex, floats, floats_mut, is_fast, writable, zeros};
use crate::half::cast;

/// See [`Together::step`](super::Together::step).
#[allow(clippy::result_large_err)] // The error is the input, which the caller takes apart at once.
pub(super) fn step<const D: usize, const N: usize, const C: usize, R: Rule<N, C>>(
    rule: &R,
    parts: Parts<D, N>,
    replicas: Option<&mut Replicas>,
) -> Result<(Tensor<D>, [Tensor<D>; N]), Parts<D, N>> {
    let shape = parts.param.dims();
    let fits = |tensor: &Tensor<D>| is_fast(tensor) && tensor.dims() == shape;
    if !fits(&parts.param) || !fits(&parts.grad) || !parts.moments.iter().flatten().all(fits) {
        return Err(parts);
    }
    let Parts { param, grad, moments } = parts;
    let dtype = param.dtype();
    let mut param = writable(flex(param));
    let grad = flex(grad);
    let grad = if grad.is_contiguous() { grad } else { grad.to_contiguous() };
    let fresh = moments.is_none();
    let mut moments = match moments {
        // Moments from a record may have another dtype.
        Some(moments) => moments.map(|moment| writable(flex(cast(moment, FloatDType::from(dtype))))),
        None => from_fn(|_| zeros(shape.into(), dtype)),
    };
    let half = replicas.as_ref().and_then(|replicas| replicas.of_update(dtype));
    let mut replica = half.map(|half| zeros(shape.into(), half.into()));
    let update = Update {
        param: floats_mut(&mut param),
        grad: floats(&grad),
        moments: moments.each_mut().map(floats_mut),
        replica: replica.as_mut().map(floats_mut),
    };
    rule.run(update, fresh);
    let param = Tensor::from_primitive::<Flex>(param);
    if let (Some(replica), Some(replicas)) = (replica, replicas) {
        replicas.keep(&param, Tensor::from_primitive::<Flex>(replica));
    }
    Ok((param, moments.map(Tensor::from_primitive::<Flex>)))
}
