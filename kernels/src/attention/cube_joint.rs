//! The thirds of a joint projection on a device: each pass is one kernel.
#![allow(unsafe_code)] // Launches without checks of bounds: each kernel checks its element.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Cube, TensorMetadata};
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

use crate::cube::{Spec, contiguous, element, empty, grid, run, units};

/// Splits a joint projection `[batch, length, 3 * width]` into its thirds, `[batch, heads, length, size]`.
pub(super) fn split(joint: FloatTensor<Cube>, heads: usize) -> [FloatTensor<Cube>; 3] {
    let (shape, dtype) = (joint.shape(), joint.dtype());
    let [batch, length, width] = shape.dims();
    let size = width / 3 / heads;
    let part = Spec::new([batch, heads, length, size], dtype);
    run(vec![joint], [part.clone(), part.clone(), part.clone()], move |inputs| {
        let joint = contiguous(inputs.into_iter().next().expect("one input"));
        let parts = [(); 3].map(|()| empty(&joint, part.shape.clone(), dtype));
        let [query, key, value] = parts.clone().map(CubeTensor::into_buffer_arg);
        let elements = part.shape.num_elements();
        let units = units(&joint, elements);
        // SAFETY: each unit checks that its element exists.
        unsafe {
            split_kernel::launch_unchecked(
                &joint.client,
                grid(&joint, elements.div_ceil(units as usize)),
                CubeDim::new_1d(units),
                joint.clone().into_buffer_arg(),
                query,
                key,
                value,
                elements,
                heads,
                length,
                size,
                element(&joint),
            );
        }
        parts
    })
}

/// Joins the gradients of the thirds, each `[batch, heads, length, size]`, and returns the gradient of the joint
/// projection, `[batch, length, 3 * width]`.
pub(super) fn join(
    query: FloatTensor<Cube>,
    key: FloatTensor<Cube>,
    value: FloatTensor<Cube>,
) -> FloatTensor<Cube> {
    let (shape, dtype) = (query.shape(), query.dtype());
    let [batch, heads, length, size] = shape.dims();
    let output = Spec::new([batch, length, 3 * heads * size], dtype);
    let whole = output.shape.clone();
    let [joint] = run(vec![query, key, value], [output], move |inputs| {
        let mut inputs = inputs.into_iter().map(contiguous);
        let mut next = || inputs.next().expect("three inputs");
        let (query, key, value) = (next(), next(), next());
        let joint = empty(&query, whole.clone(), dtype);
        let elements = query.meta.num_elements();
        let units = units(&query, elements);
        // SAFETY: each unit checks that its element exists.
        unsafe {
            join_kernel::launch_unchecked(
                &joint.client,
                grid(&joint, elements.div_ceil(units as usize)),
                CubeDim::new_1d(units),
                joint.clone().into_buffer_arg(),
                query.into_buffer_arg(),
                key.into_buffer_arg(),
                value.into_buffer_arg(),
                elements,
                heads,
                length,
                size,
                element(&joint),
            );
        }
        [joint]
    });
    joint
}

/// Returns the place in the first third of a joint projection of an element `[batch, heads, length, size]`.
#[cube]
fn place_in_joint(at: usize, heads: usize, length: usize, size: usize) -> usize {
    let head = (at / (length * size)) % heads;
    let position = (at / size) % length;
    let row = at / (heads * length * size);
    (row * length + position) * 3 * heads * size + head * size + at % size
}

#[cube(launch_unchecked)]
fn split_kernel<F: Float>(
    joint: &[F],
    query: &mut [F],
    key: &mut [F],
    value: &mut [F],
    elements: usize,
    heads: usize,
    length: usize,
    size: usize,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < elements {
        let place = place_in_joint(at, heads, length, size);
        query[at] = joint[place];
        key[at] = joint[place + heads * size];
        value[at] = joint[place + 2 * heads * size];
    }
}

#[cube(launch_unchecked)]
fn join_kernel<F: Float>(
    joint: &mut [F],
    query: &[F],
    key: &[F],
    value: &[F],
    elements: usize,
    heads: usize,
    length: usize,
    size: usize,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < elements {
        let place = place_in_joint(at, heads, length, size);
        joint[place] = query[at];
        joint[place + heads * size] = key[at];
        joint[place + 2 * heads * size] = value[at];
    }
}
