//! Products of matrices on CUDA devices by NVIDIA's cuBLASLt, where it is installed.
//!
//! CubeCL's own products reach a twelfth of what an H100 computes, and NVRTC takes up to a minute to compile one. The
//! library comes compiled. It is looked for at run time and never linked: without it, and on other devices, CubeCL
//! computes.
//!
//! A product is one call. It reads its operands where they stand, transposed or in padded rows, adds a bias or what was
//! there before, and rounds once. The library's algorithm depends on the shape and on how the operands stand, so the same
//! program gives the same bits on the same device.
//!
//! ```text
//! library.rs  the library's functions, and where it is looked for
//! layout.rs   tensors as the library's matrices
//! plan.rs     what the library has chosen for a product
//! enqueue.rs  calls in the order of CubeCL's stream: all that is known here of its internals
//! ```

mod enqueue;
mod layout;
mod library;
mod plan;

use std::sync::Arc;

use burn::backend::CubeDevice;
use burn::tensor::{DType, Shape};
use burn_cubecl::kernel::matmul::{MatmulStrategy, matmul};
use burn_cubecl::ops::numeric::{add, empty_device_dtype};
use burn_cubecl::tensor::CubeTensor;
use cubecl_runtime::client::Client;
use cubecl_runtime::server::Handle;

pub(crate) use self::layout::Format;
use self::layout::{Adds, Layout};
use self::plan::Plan;
use crate::cube::{column_sums, contiguous, empty};

/// Returns the name of the library that multiplies on a device, or why none does; `None` for devices that are not CUDA's.
pub(crate) fn library(device: &CubeDevice) -> Option<Result<&'static str, &'static str>> {
    let is_cuda = matches!(device, CubeDevice::Cuda(_));
    is_cuda.then(|| library::library().map(|library| library.name.as_str()))
}

/// Returns whether the library multiplies on a device.
pub(crate) fn is_on(device: &CubeDevice) -> bool {
    library(device).is_some_and(|found| found.is_ok())
}

/// What is added to a product.
#[derive(Debug)]
pub(crate) enum Added {
    Nothing,
    /// A vector `[n]`, to each row.
    Bias(CubeTensor),
    /// A tensor of the product's shape and dtype. If nothing else holds it, it becomes the sum.
    Total(CubeTensor),
}

/// Multiplies `[.., m, k]` by `[.., k, n]` on a device that the library [is on](is_on): in f32, bf16 or f16, of equal rank
/// and dtype, where no axis has the length 0. Leading axes of size 1 are broadcast. The product and what is added are in
/// that dtype or in f32. Sums are in f32; operands in f32 are rounded to TF32, as by CubeCL.
///
/// What the library has no algorithm for, CubeCL computes.
pub(crate) fn multiply(lhs: CubeTensor, rhs: CubeTensor, added: Added, dtype: DType) -> CubeTensor {
    let (adds, added) = match added {
        Added::Nothing => (Adds::Nothing, None),
        Added::Bias(bias) => (Adds::Bias, Some(contiguous(bias))),
        Added::Total(total) => (Adds::Total, Some(contiguous(total))),
    };
    let out = match &added {
        Some(total) if adds == Adds::Total && total.handle.can_mut() => total.clone(),
        Some(total) if adds == Adds::Total => empty(&lhs, total.meta.shape().clone(), dtype),
        _ => product_like(&lhs, &rhs, dtype),
    };
    match queued(lhs, rhs, adds, added.as_ref(), &out) {
        Ok(()) => out,
        Err(operands) => by_cubecl(*operands, added, dtype),
    }
}

/// Like [`multiply`], of `[m, k]` and `[k, n]`. Also returns the right operand's sums over its rows, `[n]`.
pub(crate) fn multiply_and_sum(lhs: CubeTensor, rhs: CubeTensor) -> [CubeTensor; 2] {
    let dtype = rhs.dtype;
    let out = product_like(&lhs, &rhs, dtype);
    let sums = empty(&rhs, [rhs.meta.shape()[1]], dtype);
    match queued(lhs, rhs, Adds::Sums, Some(&sums), &out) {
        Ok(()) => [out, sums],
        Err(operands) => {
            let sums = column_sums(operands[1].clone());
            [by_cubecl(*operands, None, dtype), sums]
        }
    }
}

/// Creates the result of a product. Its rows are padded only if they would not begin at multiples of 16 bytes, where the library
/// is fast: CubeCL's padding to whole lines of memory would take 16 times the bytes of a matrix of 8 columns, as those of LoRA are.
fn product_like(lhs: &CubeTensor, rhs: &CubeTensor, dtype: DType) -> CubeTensor {
    let shape = product_shape(lhs.meta.shape(), rhs.meta.shape());
    let columns = shape[shape.num_dims() - 1];
    match (columns * dtype.size()).is_multiple_of(16) {
        true => empty(lhs, shape, dtype),
        false => empty_device_dtype(lhs.client.clone(), lhs.device.clone(), shape, dtype),
    }
}

/// Queues a product that the library writes to `out`. `more` is what it adds, or where it writes the sums.
///
/// # Errors
///
/// The library has no algorithm for it. The operands are returned.
fn queued(
    mut lhs: CubeTensor,
    mut rhs: CubeTensor,
    adds: Adds,
    more: Option<&CubeTensor>,
    out: &CubeTensor,
) -> Result<(), Box<[CubeTensor; 2]>> {
    let mut layout = Layout::of([&lhs, &rhs], out, adds, more);
    if layout.is_none() {
        (lhs, rhs) = (contiguous(lhs), contiguous(rhs));
        layout = Layout::of([&lhs, &rhs], out, adds, more);
    }
    let Some(plan) = layout.and_then(|layout| planned(&lhs.client, layout)) else {
        return Err(Box::new([lhs, rhs]));
    };
    let client = lhs.client.clone();
    let more = more.map(|x| x.handle.clone());
    let (added, sums) = if adds == Adds::Sums { (None, more) } else { (more, None) };
    let reads = [lhs.handle, rhs.handle].into_iter().chain(added).collect();
    call(&client, plan, reads, std::iter::once(out.handle.clone()).chain(sums).collect());
    Ok(())
}

/// Returns the library's plan of a product, if it has an algorithm.
fn planned(client: &Client, layout: Layout) -> Option<Arc<Plan>> {
    match Plan::of(client, layout) {
        Ok(plan) => Some(plan),
        // The library computes what it documents, so a layout that it refuses is wrong.
        Err(why) if cfg!(test) => panic!("{why}"),
        Err(_) => None,
    }
}

/// Queues a planned product, with the workspace that it needs.
fn call(client: &Client, plan: Arc<Plan>, reads: Vec<Handle>, mut writes: Vec<Handle>) {
    writes.extend((plan.workspace() > 0).then(|| client.empty(plan.workspace())));
    enqueue::enqueue(client, reads, writes, move |stream, reads, writes| plan.call(stream, reads, writes));
}

/// A matrix of 8-bit numbers.
pub(crate) struct Codes {
    /// `[rows, depth]`, u8, contiguous.
    pub codes: CubeTensor,
    pub format: Format,
    /// What each number is multiplied by: `[1]`, f32.
    pub scale: CubeTensor,
}

/// Multiplies `[m, k]` by the transpose of `[n, k]`, where n and k are multiples of 16, and adds a bias `[n]` in the product's
/// dtype. Returns `None` if the library has no algorithm for it.
pub(crate) fn multiply_codes(
    lhs: &Codes,
    rhs: &Codes,
    bias: Option<CubeTensor>,
    dtype: DType,
) -> Option<CubeTensor> {
    let mut turned = rhs.codes.clone();
    turned.meta.swap(0, 1);
    let out = product_like(&lhs.codes, &turned, dtype);
    let bias = bias.map(contiguous);
    let adds = if bias.is_some() { Adds::Bias } else { Adds::Nothing };
    let layout = Layout::of([&lhs.codes, &turned], &out, adds, bias.as_ref())?;
    let layout = Layout { formats: Some([lhs.format, rhs.format]), ..layout };
    let client = &lhs.codes.client;
    let plan = planned(client, layout)?;
    let operands = [&lhs.codes, &rhs.codes].into_iter().chain(&bias).chain([&lhs.scale, &rhs.scale]);
    call(client, plan, operands.map(|x| x.handle.clone()).collect(), vec![out.handle.clone()]);
    Some(out)
}

/// Returns the shape of the product of `[.., m, k]` and `[.., k, n]`.
pub(crate) fn product_shape(lhs: &Shape, rhs: &Shape) -> Shape {
    let (mut shape, axes) = (lhs.clone(), lhs.num_dims() - 2);
    for axis in 0..axes {
        shape[axis] = shape[axis].max(rhs[axis]);
    }
    shape[axes + 1] = rhs[axes + 1];
    shape
}

fn by_cubecl([lhs, rhs]: [CubeTensor; 2], added: Option<CubeTensor>, dtype: DType) -> CubeTensor {
    let product = matmul(lhs, rhs, None, MatmulStrategy::default(), dtype);
    let product = product.expect("a device multiplies what its own products would");
    let Some(mut added) = added else { return product };
    if added.meta.num_dims() < product.meta.num_dims() {
        let mut shape = vec![1; product.meta.num_dims()];
        shape[product.meta.num_dims() - 1] = added.meta.shape().num_elements();
        let CubeTensor { client, handle, device, dtype, .. } = added;
        added = CubeTensor::new_contiguous(client, device, Shape::from(shape), handle, dtype);
    }
    add(product, added)
}
