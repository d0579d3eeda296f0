//! What the kernels for CubeCL's devices have in common: CUDA, wgpu and the others.
//!
//! A kernel's host function takes and returns [`CubeTensor`]s. [`run`] calls it: at once, or, where Burn fuses
//! operations, in its turn among those that are queued.
//!
//! ```text
//! deferred.rs  host functions in the order of the queue
//! columns.rs   sums over the rows of a matrix
//! total.rs     sums and maxima over the units of a cube, and the sum of the parts of a sum
//! cuda/        kernels of CUDA C++
//! ```

mod columns;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod deferred;
mod total;

use burn::backend::tensor::FloatTensor;
use burn::backend::{
    BackendTensor, Cube, DispatchDevice, DispatchKindConversion, DispatchTensor, TensorMetadata,
};
use burn::tensor::{DType, Shape};
use burn_backend::cubecl::dtype_to_storage_type;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

pub(crate) use columns::{
    COLUMNS, Tiles, column, column_sums, first_row, is_first_lane, sum_of_lanes, sums_in,
};
pub(crate) use deferred::{Spec, run, run_many, run_now};
pub(crate) use total::{most_of_cube, sum_of_cube, total};

/// The units that share a row, or a part of one.
pub(crate) const UNITS: u32 = 256;

/// Returns `x` as rows without gaps.
pub(crate) fn contiguous(x: CubeTensor) -> CubeTensor {
    into_contiguous(x)
}

/// Returns a matrix in which each row is one run of elements, and the number of elements from the start of one row to the
/// start of the next. On CUDA, Burn pads the rows of a product to whole lines of memory; [`contiguous`] would copy it.
pub(crate) fn with_stride(x: CubeTensor) -> (CubeTensor, usize) {
    let in_rows = |x: &CubeTensor| x.meta.strides()[1] == 1 && x.meta.strides()[0] >= x.meta.shape()[1];
    let x = if in_rows(&x) { x } else { contiguous(x) };
    let stride = x.meta.strides()[0];
    (x, stride)
}

/// Creates a tensor on the device of `like`, whose content is undefined.
pub(crate) fn empty(like: &CubeTensor, shape: impl Into<Shape>, dtype: DType) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), shape.into(), dtype)
}

/// Returns the elements of a contiguous tensor from `begin` on, in a shape. They are not written by others in place.
pub(crate) fn part_of(whole: &CubeTensor, shape: Shape, begin: usize) -> CubeTensor {
    let handle = whole.handle.clone().offset_start((begin * whole.dtype.size()) as u64);
    CubeTensor::new_contiguous(whole.client.clone(), whole.device.clone(), shape, handle, whole.dtype)
}

/// Returns `x` itself if nothing else holds its memory, to be written in place, or else a tensor like it, whose content
/// is undefined. `x` must be [contiguous], unless the caller reads the strides of both.
pub(crate) fn written(x: &CubeTensor) -> CubeTensor {
    if x.handle.can_mut() { x.clone() } else { empty(x, x.meta.shape().clone(), x.dtype) }
}

/// Returns how many rows a tensor has, and how wide they are: the last axis.
pub(crate) fn rows_and_width(x: &CubeTensor) -> (usize, usize) {
    let shape = x.meta.shape();
    let width = shape[shape.num_dims() - 1];
    (shape.num_elements() / width, width)
}

/// Returns the element type of a tensor in a kernel.
pub(crate) fn element(x: &CubeTensor) -> ElemType {
    dtype_to_storage_type(x.dtype)
}

/// Returns the number of units for rows of `width`: all of [`UNITS`], or fewer if the device allows fewer or the rows
/// are short. It is a power of two.
pub(crate) fn units(x: &CubeTensor, width: usize) -> u32 {
    let most = x.client.properties().hardware.max_units_per_cube.min(UNITS);
    let wanted = width.next_power_of_two().clamp(32, UNITS as usize) as u32;
    1 << most.min(wanted).ilog2()
}

/// Returns how many neighbouring elements a kernel reads and writes at once: 16 bytes of the widest, if the device can, the
/// tensors begin where that is possible, and the number divides all rows and steps, which `divides` says.
pub(crate) fn together(tensors: &[&CubeTensor], divides: impl Fn(usize) -> bool) -> usize {
    let widest = tensors.iter().map(|x| x.dtype.size()).max().expect("there are tensors");
    let fits = |together: &usize| {
        let starts = |x: &&CubeTensor| x.handle.offset_start.unwrap_or(0);
        let is_aligned = |x: &&CubeTensor| starts(x).is_multiple_of((together * x.dtype.size()) as u64);
        divides(*together) && tensors.iter().all(is_aligned)
    };
    tensors[0].client.io_optimized_vector_sizes(widest).find(fits).unwrap_or(1)
}

/// Returns a grid of at least `cubes` cubes, in as many axes as the device needs.
pub(crate) fn grid(x: &CubeTensor, cubes: usize) -> CubeCount {
    let (most, _, _) = x.client.properties().hardware.max_cube_count;
    let across = cubes.min(most as usize).max(1);
    CubeCount::Static(across as u32, cubes.div_ceil(across) as u32, 1)
}

/// Returns whether the kernels compute these tensors: they compute in f32.
pub(crate) fn has_kernels<'a>(tensors: impl IntoIterator<Item = &'a DispatchTensor>) -> bool {
    let narrow = |x: &DispatchTensor| matches!(x.dtype(), DType::F32 | DType::F16 | DType::BF16);
    let mut tensors = tensors.into_iter().peekable();
    // Burn's operations say that tensors are on several devices.
    let Some(DispatchDevice::Cube(device)) = tensors.peek().map(|first| first.device()) else { return false };
    tensors.all(|x| narrow(x) && matches!(x.device(), DispatchDevice::Cube(other) if other == device))
}

/// Returns the tensors of the device.
///
/// # Panics
///
/// If the [kernels](has_kernels) don't compute them.
pub(crate) fn of_cube(tensors: Vec<DispatchTensor>) -> Vec<FloatTensor<Cube>> {
    let of_cube = |tensor| match <DispatchTensor as DispatchKindConversion<Cube>>::try_into_backend(tensor) {
        Ok(BackendTensor::Float(tensor)) => tensor,
        _ => unreachable!("the kernels compute float tensors of CubeCL's devices"),
    };
    tensors.into_iter().map(of_cube).collect()
}

/// Returns the tensors as those of dispatch.
pub(crate) fn into_dispatch(tensors: Vec<FloatTensor<Cube>>) -> Vec<DispatchTensor> {
    let into =
        |tensor| <DispatchTensor as DispatchKindConversion<Cube>>::from_backend(BackendTensor::Float(tensor));
    tensors.into_iter().map(into).collect()
}

/// The elements of a tensor that one cube computes.
pub(crate) const PART: usize = 16 * UNITS as usize;

/// The most tensors of one launch of a kernel of CubeCL, which repeats its body for each.
const TOGETHER: usize = 32;

/// Buffers of a kernel besides the tensors: those that all of them share, and the scalars.
const OTHERS: usize = 3;

/// Returns the places of the tensors that are not empty, in groups that are alike, in order within each kind. A tensor
/// has `buffers` arguments in the kernel, and `constants` of its own.
pub(crate) fn groups<K: PartialEq>(
    tensors: &[CubeTensor],
    (buffers, constants): (usize, usize),
    kind: impl Fn(usize) -> K,
) -> Vec<Vec<usize>> {
    let Some(first) = tensors.first() else { return Vec::new() };
    let together = most_together(first, buffers, constants);
    let mut kinds: Vec<(K, Vec<usize>)> = Vec::new();
    for at in (0..tensors.len()).filter(|at| tensors[*at].meta.num_elements() > 0) {
        let kind = kind(at);
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, places)) => places.push(at),
            None => kinds.push((kind, vec![at])),
        }
    }
    let chunks = kinds.iter().flat_map(|(_, places)| places.chunks(together));
    chunks.map(<[usize]>::to_vec).collect()
}

/// Returns the most tensors of one launch.
#[cfg_attr(not(feature = "cuda"), allow(unused_variables))]
fn most_together(like: &CubeTensor, buffers: usize, constants: usize) -> usize {
    #[cfg(feature = "cuda")]
    if cuda::serves(&like.device) {
        return cuda::most(buffers, constants);
    }
    let most = (like.client.properties().hardware.max_bindings as usize).saturating_sub(OTHERS);
    (most / buffers).clamp(1, TOGETHER)
}

/// Returns the cube after those that compute a tensor of `length` elements, of which `begin` is the first.
#[cube]
#[allow(clippy::manual_div_ceil)] // That of CubeCL takes no number that is known when the kernel is compiled.
pub(crate) fn end_of(begin: usize, length: usize, #[comptime] part: usize) -> usize {
    begin + (length + part - 1) / part
}
