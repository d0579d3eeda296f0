//! Updates on CubeCL's devices: the parameters of a model, many in one kernel.
//!
//! An update is collected as a [`Job`]; the jobs that belong together are launched in groups.
//!
//! ```text
//! together.rs  the updates that are launched together
//! job.rs       the tensors of one update
//! launch.rs    the kernel that updates a group
//! symbol.rs    an equation as the body of a kernel
//! text.rs      an equation as the body of a kernel in CUDA C++
//! ```

mod job;
mod launch;
mod symbol;
#[cfg(feature = "cuda")]
mod text;
mod together;

use burn::backend::TensorMetadata;
use burn::tensor::{FloatDType, Tensor};

use super::replicas::Replicas;
use super::rule::{Parts, Rule};
use super::slices::counter;
use crate::cube::{Spec, has_kernels, into_dispatch, of_cube, run_many};
use crate::half::cast;
use job::Job;
use launch::launch;

pub(super) use together::Pending;

/// The new parameter and moments of an update, and whether it waits for its launch.
type Updated<const D: usize, const N: usize> = ((Tensor<D>, [Tensor<D>; N]), bool);

/// See [`Together::step`](super::Together::step).
#[allow(clippy::result_large_err)] // The error is the input, which the caller takes apart at once.
pub(super) fn step<const D: usize, const N: usize, const C: usize, R: Rule<N, C>>(
    rule: &R,
    parts: Parts<D, N>,
    pending: &mut Pending,
    replicas: Option<&mut Replicas>,
) -> Result<Updated<D, N>, Parts<D, N>> {
    if !computes(&parts) {
        return Err(parts);
    }
    let Parts { param, grad, moments } = parts;
    let (shape, dtype) = (param.shape(), param.dtype());
    let fresh = moments.is_none();
    // Moments from a record may have another dtype.
    let moments = moments.into_iter().flatten().map(|moment| cast(moment, FloatDType::from(dtype)));
    let half = replicas.as_ref().and_then(|replicas| replicas.of_update(dtype));
    let like = Spec::new(shape.clone(), dtype);
    let mut outputs = vec![like; 1 + N];
    outputs.extend(half.map(|half| Spec::new(shape, half.into())));
    let inputs: Vec<_> = [param, grad].into_iter().chain(moments).map(Tensor::into_dispatch).collect();
    let inputs = of_cube(inputs);
    let device = inputs[0].device();
    let (rule, copies, outcome) = (*rule, counter(), outputs.clone());
    let (found, waits) = pending.collect(device, move |jobs| {
        run_many(inputs, outputs, move |inputs| {
            let launch = launch::<R, N, C>;
            let job = Job::new(&rule, inputs, &outcome[1 + N..], fresh, &copies, launch);
            let found = job.outputs();
            jobs.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(job);
            found
        })
    });
    let mut found = into_dispatch(found).into_iter().map(Tensor::<D>::from_dispatch);
    let mut next = || found.next().expect("as many results as outputs");
    let (param, moments) = (next(), std::array::from_fn(|_| next()));
    if let Some(replicas) = replicas.filter(|_| half.is_some()) {
        replicas.keep(&param, next());
    }
    Ok(((param, moments), waits))
}

/// Returns whether the kernel computes this update: all parts are on one device, of one shape, outside autodiff.
fn computes<const D: usize, const N: usize>(parts: &Parts<D, N>) -> bool {
    let Parts { param, grad, moments } = parts;
    let mut all = [param, grad].into_iter().chain(moments.iter().flatten());
    param.shape().num_elements() > 0
        && all.clone().all(|part| !part.is_autodiff() && part.dims() == param.dims())
        && has_kernels(&all.by_ref().map(|part| part.clone().into_dispatch()).collect::<Vec<_>>())
}
