//! Products of matrices and affine maps, with their gradients, in f32, bf16 and f16 on the CPU.
//!
//! Flex, Burn's CPU backend, computes in `gemm` and fills the memory of each product with zeros first, on one core. It
//! has no bf16 arithmetic: it converts both operands and the product on one core. An affine map's bias is one more pass
//! over the product, on one core, and so is the sum that is its gradient.
//!
//! Here [gemm](https://docs.rs/gemm) itself multiplies in f32, on processors with AVX2 or AVX-512, into memory that is not filled
//! first, and a bias is added on all cores to what was just written. It packs a right operand slowly whose columns are
//! adjacent, as in the gradient of a layer's input, so that one is transposed first where that counts. Elsewhere, and for a
//! few rows or columns, [gemmkit](https://docs.rs/gemmkit) multiplies, with sums in f32 for all three dtypes, adds the bias
//! before it stores an element, and rounds once. Over 2048 rows, the layers of width 256 to 1024 and their gradients run on two
//! cores of an EPYC of the fourth generation at these GFLOP/s, the lowest and the highest; the peak of a loop of multiply-adds is 234:
//!
//! ```text
//! AVX-512    gemmkit       gemm          PyTorch 2.15
//! x · w      153 to 218    190 to 223    174 to 208
//! g · wᵀ     148 to 215    203 to 221    175 to 207
//! xᵀ · g     186 to 218    188 to 216    165 to 206
//! ```
//!
//! With AVX2 gemmkit's gradient of a weight, whose inner axis is the rows, falls to 93 to 194, and the others run alike. `cargo bench
//! -p firebrick-kernels --bench products` compares products and layers with Burn's, and `python3 benches/products_torch.py` with
//! PyTorch's.
//!
//! In bf16 most products are tiles of our own on processors with `vdpbf16ps`, which pack each operand once, and can leave a product
//! in f32, which gemmkit does not offer. On one core of another EPYC, over the same layers, they run at 0.92 to 1.22 of gemmkit's
//! speed (360 to 470 GFLOP/s).
//!
//! With AVX-512 but without dot products of bf16 gemmkit widens in registers, at the speed of f32. With AVX2 alone this
//! takes 1.4 times as long as f32, so tiles of our own widen bf16 and f16 as they pack them: on two cores of an EPYC of the
//! first generation they run at 0.84 to 1.25 of the speed of gemmkit's f32, and of width 256 at 0.98 to 1.25. Other products
//! in half precision, of a few rows or columns, multiply copies of the operands in f32 there.
//!
//! A weight is packed anew for each product: that is 1% of a product of 2048 rows (the lines `packed once` of the bench),
//! and panels that are kept would take as much memory as the weights again, for each direction.
//!
//! The bits of a product depend on its shape, dtype and strides and on the processor (its instructions and the sizes of
//! its caches), not on the number of threads. `vdpbf16ps` takes bf16 numbers below 2⁻¹²⁶ as zero.
//!
//! The backward pass keeps the operands that a gradient reads: those themselves, so nothing in addition to what the
//! model holds, in their own dtype. On NVIDIA's GPUs the products are cuBLASLt's if it is [found](product_library), in one
//! call with the bias, and on others Burn's; the gradient of a bias is a kernel of ours. In f64 each function is Burn's own
//! operation.
//!
//! ```text
//! backward.rs    the gradients, once for every backend
//! flex.rs        tensors as matrices, and sums over their rows: the gradient of a bias
//! cube.rs        products on a device
//! matrices.rs    matrices in slices
//! by_gemm.rs     their products in f32, by gemm
//! by_gemmkit.rs  their products in all dtypes, by gemmkit
//! tiles/         their products in half precision, by tiles of our own
//! unread.rs      products whose gradients alone are needed
//! buffers.rs     the buffers that products keep for the life of a thread
//! ```

mod backward;
mod buffers;
mod by_gemm;
mod by_gemmkit;
#[cfg(feature = "cube")]
mod cube;
mod flex;
mod matrices;
#[cfg(test)]
mod tests;
mod tiles;
mod unread;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Dispatch, TensorMetadata, backend_extension};
use burn::tensor::{DType, Device, Shape, Tensor, module};

use crate::half::HalfOps;
use crate::off::Kernel;

#[cfg(feature = "cube")]
pub(crate) use cube::{add_product as cube_add_product, wide_product as cube_wide_product};
pub(crate) use flex::{add_product, wide_product};
pub(crate) use tiles::has_dots;

pub use buffers::settle_products;

pub(crate) use unread::value;
pub use unread::{with_read_products, with_unread_products};

/// Multiplies two matrices `[.., m, k]` and `[.., k, n]`. The product has the shape `[.., m, n]` and their dtype.
/// Leading axes of size 1 are broadcast.
///
/// ```
/// use burn::tensor::{Device, FloatDType, Tensor};
///
/// let device = Device::flex().autodiff();
/// let a = Tensor::<2>::from_data([[1.0, 2.0]], &device).cast(FloatDType::BF16).require_grad();
/// let b = Tensor::<2>::from_data([[3.0], [4.0]], &device).cast(FloatDType::BF16);
/// let product = firebrick_kernels::matmul(a.clone(), b);
/// assert_eq!(product.clone().into_scalar::<f32>(), 11.0);
/// let grads = product.backward();
/// assert_eq!(a.grad(&grads).unwrap().into_data().iter::<f32>().collect::<Vec<_>>(), [3.0, 4.0]);
/// ```
///
/// # Panics
///
/// If the shapes do not fit or the dtypes differ, like [`Tensor::matmul`].
pub fn matmul<const D: usize>(lhs: Tensor<D>, rhs: Tensor<D>) -> Tensor<D> {
    let fits = D >= 2 && lhs.dtype() == rhs.dtype() && product_fits(&lhs.dims(), &rhs.dims());
    if !owns(lhs.dtype()) || !fits {
        return lhs.matmul(rhs);
    }
    Tensor::from_dispatch(<Dispatch as ProductOps>::product(lhs.into_dispatch(), rhs.into_dispatch()))
}

fn product_fits(lhs: &[usize], rhs: &[usize]) -> bool {
    let axes = lhs.len() - 2;
    let mut leading = lhs.iter().zip(rhs).take(axes);
    leading.all(|(a, b)| a == b || *a == 1 || *b == 1) && lhs[axes + 1] == rhs[axes]
}

/// Applies an affine map to the last axis: `x · weight + bias`, of shape `[.., out]` for `x` `[.., in]`,
/// `weight` `[in, out]` and `bias` `[out]`, all in one dtype.
///
/// In half precision on Flex, it adds the bias and sums its gradient in f32.
///
/// ```
/// use burn::tensor::{Device, Tensor};
///
/// let device = Device::flex();
/// let x = Tensor::<2>::from_data([[1.0, 2.0], [3.0, 4.0]], &device);
/// let weight = Tensor::from_data([[1.0], [10.0]], &device);
/// let y = firebrick_kernels::linear(x, weight, Some(Tensor::from_data([0.5], &device)));
/// assert_eq!(y.into_data().iter::<f32>().collect::<Vec<_>>(), [21.5, 43.5]);
/// ```
///
/// # Panics
///
/// If the shapes do not fit or the dtypes differ, like [`burn::tensor::module::linear`].
pub fn linear<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    let dims = x.dims();
    let [from, to] = weight.dims();
    let fits = dims[D - 1] == from
        && x.dtype() == weight.dtype()
        && bias.as_ref().is_none_or(|bias| bias.dims() == [to] && bias.dtype() == x.dtype());
    if !owns(x.dtype()) || !fits {
        return module::linear(x, weight, bias);
    }
    if D == 1 {
        return linear::<2>(x.reshape([1, from]), weight, bias).reshape([to; D]);
    }
    match bias {
        None => matmul(x, weight.unsqueeze()),
        Some(bias) => {
            let (x, weight) = (x.into_dispatch(), weight.into_dispatch());
            Tensor::from_dispatch(<Dispatch as ProductOps>::affine(x, weight, bias.into_dispatch()))
        }
    }
}

/// Returns the gradients of the weight, `[in, out]`, and of the bias, `[1, out]`, of a [`linear`] map, given its input, `[rows, in]`, and
/// the gradient of its result, `[rows, out]`, in one dtype: what its own backward pass computes, for a caller that does not keep
/// the input.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_kernels::linear_gradients;
///
/// let device = Device::flex();
/// let [x, grad] = [[[1.0, 2.0], [3.0, 4.0]], [[1.0, 0.0], [0.0, 1.0]]].map(|x| Tensor::<2>::from_data(x, &device));
/// let [weight, bias] = linear_gradients(x.clone(), grad);
/// assert_eq!(weight.into_data(), x.transpose().into_data());
/// assert_eq!(bias.into_data(), Tensor::<2>::from_data([[1.0, 1.0]], &device).into_data());
/// ```
///
/// # Panics
///
/// If the shapes do not fit or the dtypes differ.
pub fn linear_gradients(x: Tensor<2>, grad: Tensor<2>) -> [Tensor<2>; 2] {
    if !owns(x.dtype()) || x.dims()[0] != grad.dims()[0] || x.dtype() != grad.dtype() {
        return [x.transpose().matmul(grad.clone()), grad.sum_dim(0)];
    }
    let outputs = grad.dims()[1];
    let (x, grad) = (x.into_dispatch(), grad.into_dispatch());
    let (weight, bias) = <Dispatch as ProductOps>::affine_gradients(x, grad);
    [Tensor::from_dispatch(weight), Tensor::<1>::from_dispatch(bias).reshape([1, outputs])]
}

/// Returns the library that multiplies matrices on a CUDA device, by its name, version and file, or why CubeCL's kernels do,
/// which are many times slower. On other devices there is none to look for: `None`.
///
/// It is NVIDIA's cuBLASLt, which is found when it is first asked for: as `libcublasLt.so.13` or `.12` where libraries are
/// looked for, then in the toolkit that `CUDA_PATH` names. The variable `FIREBRICK_CUBLASLT` names another file, or is `off`.
///
/// ```
/// assert_eq!(firebrick_kernels::product_library(&burn::tensor::Device::flex()), None);
/// ```
pub fn product_library(device: &Device) -> Option<Result<&'static str, &'static str>> {
    #[cfg(feature = "cuda")]
    if let burn::backend::DispatchDevice::Cube(device) = device.clone().inner().as_dispatch() {
        return crate::cublas::library(device);
    }
    let _ = device;
    None
}

/// Returns whether this crate computes products in a dtype. Otherwise they, and their gradients, are Burn's.
pub(crate) fn owns(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::BF16) && !Kernel::Products.is_off()
}

/// Products with gradients of their own. The defaults are Burn's own operations.
///
/// Call [`matmul`] and [`linear`], which take tensors. On backends outside this crate's
/// features, they panic.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff)]
pub trait ProductOps: HalfOps {
    /// Multiplies `[.., m, k]` by `[.., k, n]`, of equal rank and dtype; leading axes are broadcast.
    fn product(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::float_matmul(lhs, rhs)
    }

    /// Returns `x · weight + bias` for `[.., in]`, `[in, out]` and `[out]`, all in one dtype.
    fn affine(x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self> {
        of_rows::<Self>(x, |rows| Self::linear(rows, weight, Some(bias)))
    }

    /// Sums `[rows, out]` over its rows.
    fn column_sums(x: FloatTensor<Self>) -> FloatTensor<Self> {
        column_sums::<Self>(x)
    }

    /// Returns the gradients of the weight and the bias of an affine map of `[rows, in]`, given that of its result,
    /// `[rows, out]`.
    fn affine_gradients(
        x: FloatTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        (Self::product(Self::float_transpose(x), grad.clone()), Self::column_sums(grad))
    }
}

/// Applies `of` to the matrix of all rows of `x`, and restores the axes before the last one.
pub(crate) fn of_rows<B: Backend>(
    x: FloatTensor<B>,
    of: impl FnOnce(FloatTensor<B>) -> FloatTensor<B>,
) -> FloatTensor<B> {
    let mut shape = x.shape();
    let found = of(rows::<B>(x));
    let last = shape.num_dims() - 1;
    shape[last] = found.shape()[1];
    B::float_reshape(found, shape)
}

/// Returns the matrix of all rows of `[.., cols]`.
pub(crate) fn rows<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let shape = x.shape();
    let last = shape.num_dims() - 1;
    let rows = (0..last).map(|axis| shape[axis]).product();
    B::float_reshape(x, Shape::new([rows, shape[last]]))
}

/// Sums over rows with Burn's operations.
fn column_sums<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let cols = x.shape()[1];
    B::float_reshape(B::float_sum_dim(x, 0), Shape::new([cols]))
}
