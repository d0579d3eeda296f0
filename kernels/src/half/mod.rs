//! Half precision at the speed of f32 on processors that compute in f32 anyway.
//!
//! Flex, Burn's CPU backend, has no bf16 arithmetic: its matmul copies both operands, converts them on one core,
//! multiplies in f32 and converts back on one core. The functions here convert each operand once, on all cores in
//! vectors, multiply in f32 and round once at the end. The backward pass does the same, and only keeps the operands
//! themselves: 2 bytes per element.
//!
//! In f32 and f64, and on GPUs in every dtype, each function is Burn's own operation.
//!
//! ```text
//! ops.rs       the traits over Backend: a backend's compute dtype, and the products themselves
//! backward.rs  their gradients, once for every backend
//! flex.rs      conversion between half precision and f32 on Flex, for any view
//! bf16.rs      the two conversions of bf16, in vectors
//! ```

mod backward;
pub(crate) mod bf16;
#[cfg(feature = "flex")]
mod flex;
mod ops;
#[cfg(test)]
mod tests;

use burn::backend::Dispatch;
use burn::tensor::{FloatDType, Tensor, module};

pub use ops::{Convert, HalfOps};

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
    if !is_half(&lhs) || !fits {
        return lhs.matmul(rhs);
    }
    let product = <Dispatch as HalfOps>::half_matmul(lhs.into_dispatch(), rhs.into_dispatch());
    Tensor::from_dispatch(product)
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
/// # Panics
///
/// If the shapes do not fit or the dtypes differ, like [`burn::tensor::module::linear`].
pub fn linear<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    let dims = x.dims();
    let [from, to] = weight.dims();
    let fits = dims[D - 1] == from
        && x.dtype() == weight.dtype()
        && bias.as_ref().is_none_or(|bias| bias.dims() == [to] && bias.dtype() == x.dtype());
    if !is_half(&x) || !fits {
        return module::linear(x, weight, bias);
    }
    let rows = dims[..D - 1].iter().product();
    let x = x.reshape([rows, from]);
    let y = match bias {
        None => matmul(x, weight),
        Some(bias) => {
            let [x, weight] = [x, weight].map(Tensor::into_dispatch);
            let y = <Dispatch as HalfOps>::half_affine(x, weight, bias.into_dispatch());
            Tensor::<2>::from_dispatch(y)
        }
    };
    let mut shape = dims;
    shape[D - 1] = to;
    y.reshape(shape)
}

/// Casts the tensor to another float dtype, rounded to nearest, ties to even.
///
/// Differs from [`Tensor::cast`] only in speed: on Flex, between f32 and half precision, it runs on all cores in
/// vectors, forward and backward.
pub fn cast<const D: usize>(x: Tensor<D>, dtype: FloatDType) -> Tensor<D> {
    if x.dtype() == dtype.into() {
        return x;
    }
    Tensor::from_dispatch(<Dispatch as HalfOps>::fast_cast(x.into_dispatch(), dtype))
}

fn is_half<const D: usize>(x: &Tensor<D>) -> bool {
    matches!(FloatDType::from(x.dtype()), FloatDType::BF16 | FloatDType::F16)
}
