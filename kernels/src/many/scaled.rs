//! Products of many tensors and one factor, and casts, on a device.
#![allow(unsafe_code)] // Launches without checks of bounds: the kernel checks the ends of its tensor.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Cube, TensorMetadata};
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

#[cfg(feature = "cuda")]
use crate::cube::cuda::{self, Buffer, Pass};
use crate::cube::{
    PART, Spec, UNITS, contiguous, element, empty, end_of, grid, groups, part_of, run_many, units, written,
};

/// Tensors are cast until they have so many bytes, and dropped before the next ones are.
const CAST: usize = 256 << 20;

/// What tensors are multiplied by.
#[derive(Clone, Copy)]
enum By<'a> {
    One,
    /// A factor, `[1]`.
    Factor(&'a CubeTensor),
    /// What bounds a norm, `[1]`, by a number.
    Bound(&'a CubeTensor, f32),
}

/// Multiplies each tensor by the factor, in place where nothing else holds it.
pub fn scale_all(tensors: Vec<FloatTensor<Cube>>, factor: FloatTensor<Cube>) -> Vec<FloatTensor<Cube>> {
    let dtypes = tensors.iter().map(|x| x.dtype()).collect();
    by_number(tensors, dtypes, factor, None)
}

/// Multiplies each tensor by what bounds the norm, in place where nothing else holds it and it has the dtype of the result.
pub fn clip_all(
    tensors: Vec<FloatTensor<Cube>>,
    dtypes: Vec<DType>,
    norm: FloatTensor<Cube>,
    max: f32,
) -> Vec<FloatTensor<Cube>> {
    by_number(tensors, dtypes, norm, Some(max))
}

/// Multiplies each tensor by the number, or by what bounds it. The products have these dtypes.
fn by_number(
    tensors: Vec<FloatTensor<Cube>>,
    dtypes: Vec<DType>,
    number: FloatTensor<Cube>,
    max: Option<f32>,
) -> Vec<FloatTensor<Cube>> {
    let output = |(x, dtype): (&FloatTensor<Cube>, &DType)| Spec::new(x.shape(), *dtype);
    let outputs = tensors.iter().zip(&dtypes).map(output).collect();
    let inputs = std::iter::once(number).chain(tensors).collect();
    run_many(inputs, outputs, move |inputs| {
        let mut inputs = inputs.into_iter().map(contiguous);
        let number = inputs.next().expect("the number comes first");
        let tensors: Vec<_> = inputs.collect();
        let found = tensors.iter().zip(&dtypes).map(|(x, dtype)| match x.dtype == *dtype {
            true => written(x),
            false => empty(x, x.meta.shape().clone(), *dtype),
        });
        let found = found.collect();
        let by = max.map_or(By::Factor(&number), |max| By::Bound(&number, max));
        scaled(&tensors, found, by, 1.0)
    })
}

/// Joins the parts of each tensor along their first axis, multiplies by the factor in f32, and returns the products in the
/// dtypes that stand with them.
pub fn joined_and_scaled(
    all: Vec<(Vec<FloatTensor<Cube>>, DType)>,
    factor: FloatTensor<Cube>,
) -> Vec<FloatTensor<Cube>> {
    let output = |(parts, dtype): &(Vec<FloatTensor<Cube>>, DType)| {
        let mut shape = parts[0].shape();
        shape[0] = parts.iter().map(|part| part.shape()[0]).sum();
        Spec::new(shape, *dtype)
    };
    let outputs: Vec<_> = all.iter().map(output).collect();
    let targets: Vec<_> = all.iter().map(|(parts, _)| parts.len()).zip(outputs.clone()).collect();
    let inputs = std::iter::once(factor).chain(all.into_iter().flat_map(|(parts, _)| parts)).collect();
    run_many(inputs, outputs, move |inputs| {
        let mut inputs = inputs.into_iter().map(contiguous);
        let factor = inputs.next().expect("the factor comes first");
        let parts: Vec<_> = inputs.collect();
        let (mut found, mut places) = (Vec::new(), Vec::new());
        for (count, Spec { shape, dtype }) in &targets {
            let parts = &parts[places.len()..places.len() + count];
            let whole = match parts {
                [alone] if alone.dtype == *dtype => written(alone),
                _ => empty(&factor, shape.clone(), *dtype),
            };
            let mut begin = 0;
            for part in parts {
                places.push(part_of(&whole, part.meta.shape().clone(), begin));
                begin += part.meta.num_elements();
            }
            found.push(whole);
        }
        scaled(&parts, places, By::Factor(&factor), 1.0);
        found
    })
}

/// Divides each tensor by the divisor, in f32, and returns the quotients in `dtype`. Tensors are dropped as others are cast.
pub fn cast_all(tensors: Vec<FloatTensor<Cube>>, dtype: DType, divisor: f32) -> Vec<FloatTensor<Cube>> {
    let mut tensors = tensors.into_iter().peekable();
    let mut found = Vec::new();
    while tensors.peek().is_some() {
        let mut bytes = 0;
        let mut few = |x: &FloatTensor<Cube>| {
            let is_first = bytes == 0;
            bytes += x.shape().num_elements() * x.dtype().size();
            is_first || bytes <= CAST
        };
        let inputs: Vec<_> = std::iter::from_fn(|| tensors.next_if(&mut few)).collect();
        let outputs = inputs.iter().map(|x| Spec::new(x.shape(), dtype)).collect();
        found.extend(run_many(inputs, outputs, move |inputs| {
            let tensors: Vec<_> = inputs.into_iter().map(contiguous).collect();
            let found = tensors.iter().map(|x| empty(x, x.meta.shape().clone(), dtype)).collect();
            scaled(&tensors, found, By::One, divisor)
        }));
    }
    found
}

/// Multiplies the tensors, and divides them by the divisor.
fn scaled(tensors: &[CubeTensor], found: Vec<CubeTensor>, by: By, divisor: f32) -> Vec<CubeTensor> {
    for group in groups(tensors, (2, 0), |at| (tensors[at].dtype, found[at].dtype)) {
        #[cfg(feature = "cuda")]
        if cuda::serves(&tensors[0].device) {
            scaled_by_cuda(&group, tensors, &found, by, divisor);
            continue;
        }
        let (mut from, mut to, mut lengths) = (SequenceArg::new(), SequenceArg::new(), SequenceArg::new());
        let mut cubes = 0;
        for at in &group {
            let length = tensors[*at].meta.num_elements();
            cubes += length.div_ceil(PART);
            from.push(tensors[*at].clone().into_buffer_arg());
            to.push(found[*at].clone().into_buffer_arg());
            lengths.push(length);
        }
        let first = &tensors[group[0]];
        // Multiplied by 1, nothing reads this buffer.
        let (number, max) = match by {
            By::One => (first, 1.0),
            By::Factor(factor) => (factor, 1.0),
            By::Bound(norm, max) => (norm, max),
        };
        let units = units(first, UNITS as usize);
        // SAFETY: a cube beyond the last tensor's does nothing, and each reads and writes a tensor within its number of
        // elements.
        unsafe {
            scale_kernel::launch_unchecked(
                &first.client,
                grid(first, cubes),
                CubeDim::new_1d(units),
                from,
                to,
                lengths,
                number.clone().into_buffer_arg(),
                max,
                divisor,
                !matches!(by, By::One),
                matches!(by, By::Bound(..)),
                PART,
                units,
                [element(first), element(&found[group[0]]), element(number)],
            );
        }
    }
    found
}

/// The same as `scale_kernel`, of more tensors at once.
#[cfg(feature = "cuda")]
fn scaled_by_cuda(group: &[usize], tensors: &[CubeTensor], found: &[CubeTensor], by: By, divisor: f32) {
    let (number, before, max) = match by {
        By::One => (None, "float by = 1.0f;", 1.0),
        By::Factor(factor) => (Some(factor), "float by = wide(s0[0]);", 1.0),
        By::Bound(norm, max) => {
            let share = "float by = 1.0f / (wide(s0[0]) + 1e-6f) * constant[1]; by = by > 1.0f ? 1.0f : by;";
            (Some(norm), share, max)
        }
    };
    let pass = Pass {
        name: "scale",
        buffers: vec![Buffer::read(&tensors[group[0]]), Buffer::written(&found[group[0]])],
        shared: number.into_iter().map(Buffer::read).collect(),
        before: before.into(),
        body: "x1 = x0 * by / constant[0];".into(),
        after: "",
    };
    let tensors: Vec<_> = group.iter().map(|at| vec![&tensors[*at], &found[*at]]).collect();
    pass.launch(&tensors, number.as_slice(), &[&[divisor, max]], 0);
}

#[cube(launch_unchecked)]
fn scale_kernel<F: Float, T: Float, S: Float>(
    from: Sequence<Box<[F]>>,
    mut to: Sequence<Box<[T]>>,
    lengths: Sequence<usize>,
    number: &[S],
    max: f32,
    divisor: f32,
    #[comptime] multiplies: bool,
    #[comptime] bounds: bool,
    #[comptime] part: usize,
    #[comptime] units: u32,
    #[define(F, T, S)] _dtypes: [ElemType; 3],
) {
    let cube = CUBE_POS;
    let mut by = 1.0f32;
    if multiplies {
        by = f32::cast_from(number[0]);
    }
    if bounds {
        let share = 1.0 / (by + 1e-6) * max;
        // It stays NaN, which `min` would not keep.
        by = select(share > 1.0, 1.0, share);
    }
    let mut begin = 0usize;
    #[unroll]
    for i in 0..from.len() {
        let length = lengths[i];
        let end = end_of(begin, length, part);
        if cube >= begin && cube < end {
            let source = &from[i];
            let target = &mut to[i];
            let mut at = (cube - begin) * part + UNIT_POS as usize;
            let last = min((cube - begin + 1) * part, length);
            while at < last {
                target[at] = T::cast_from(f32::cast_from(source[at]) * by / divisor);
                at += units as usize;
            }
        }
        begin = end;
    }
}
