//! What the kernels for CubeCL's devices have in common: CUDA, wgpu and the others.
//!
//! A kernel's host function takes and returns [`CubeTensor`]s. [`run`] calls it: at once, or, where Burn fuses
//! operations, in its turn among those that are queued.
//!
//! ```text
//! deferred.rs     host functions in the order of the queue
//! cooperation.rs  sums and maxima over the units of a cube
//! columns.rs      sums over the rows of a matrix
//! dispatch.rs     tensors of dispatch as those of CubeCL's devices, and back
//! groups.rs       tensors in groups, each of which one kernel computes
//! total.rs        the sum of the parts of a sum
//! cuda/           kernels of CUDA C++
//! ```

mod columns;
mod cooperation;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod deferred;
mod dispatch;
mod groups;
mod total;

use burn::tensor::{DType, Shape};
use burn_backend::cubecl::dtype_to_storage_type;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::ops::numeric::empty_device_contiguous_dtype;
use burn_cubecl::tensor::CubeTensor;
use cubecl::prelude::*;

pub(crate) use columns::{
    COLUMNS, Tiles, column, column_sums, first_row, is_first_lane, sum_of_lanes, sums_in,
};
pub(crate) use cooperation::{most_of_cube, sum_of_cube};
pub(crate) use deferred::{Spec, run, run_many, run_now};
pub(crate) use dispatch::{has_kernels, into_dispatch, of_cube};
pub(crate) use groups::{PART, end_of, groups};
pub(crate) use total::total;

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
