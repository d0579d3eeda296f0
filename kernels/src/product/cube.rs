//! Products on a device: by NVIDIA's library where there is one, or else Burn's, and the gradient of a bias.

use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Cube, TensorMetadata};
use burn::tensor::{DType, Shape};
use burn_cubecl::kernel::matmul::{MatmulStrategy, matmul};

use super::{ProductOps, of_rows, owns};
use crate::cube::{self, Spec, run};
#[cfg(feature = "cuda")]
use crate::cublas::{self, Added};

impl ProductOps for Cube {
    fn product(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        #[cfg(feature = "cuda")]
        if by_library(&lhs, &rhs) {
            let dtype = lhs.dtype();
            return multiply(None, lhs, rhs, dtype);
        }
        Self::float_matmul(lhs, rhs)
    }

    /// Adds the bias in the shape of the result, so that the queue can fuse the sum with what follows.
    fn affine(x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self> {
        #[cfg(feature = "cuda")]
        if by_library(&x, &weight) {
            return of_rows::<Self>(x, |rows| {
                let dtype = rows.dtype();
                let output = Spec::new([rows.shape()[0], weight.shape()[1]], dtype);
                let [y] = run(vec![rows, weight, bias], [output], move |inputs| {
                    let [x, weight, bias] = inputs.try_into().expect("three inputs");
                    [cublas::multiply(x, weight, Added::Bias(bias), dtype)]
                });
                y
            });
        }
        let product = of_rows::<Self>(x, |rows| Self::float_matmul(rows, weight));
        let mut shape = vec![1; product.rank()];
        shape[product.rank() - 1] = bias.shape().num_elements();
        Self::float_add(product, Self::float_reshape(bias, Shape::from(shape)))
    }

    fn column_sums(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let (shape, dtype) = (x.shape(), x.dtype());
        if shape.num_elements() == 0 || !owns(dtype) {
            return super::column_sums::<Self>(x);
        }
        let [sums] = run(vec![x], [Spec::new([shape[1]], dtype)], |inputs| {
            let [x] = inputs.try_into().expect("one input");
            [cube::column_sums(x)]
        });
        sums
    }

    #[cfg(feature = "cuda")]
    fn affine_gradients(
        x: FloatTensor<Self>,
        grad: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let x = Self::float_transpose(x);
        if !by_library(&x, &grad) {
            return (Self::product(x, grad.clone()), Self::column_sums(grad));
        }
        let (columns, dtype) = (grad.shape()[1], grad.dtype());
        let outputs = [Spec::new([x.shape()[0], columns], dtype), Spec::new([columns], dtype)];
        let [of_weight, of_bias] = run(vec![x, grad], outputs, |inputs| {
            let [x, grad] = inputs.try_into().expect("two inputs");
            cublas::multiply_and_sum(x, grad)
        });
        (of_weight, of_bias)
    }
}

/// Multiplies `[m, k]` by `[k, n]` and returns the sums as the device holds them, in f32.
pub(crate) fn wide_product(lhs: FloatTensor<Cube>, rhs: FloatTensor<Cube>) -> FloatTensor<Cube> {
    if lhs.dtype() == DType::F32 {
        return Cube::product(lhs, rhs);
    }
    #[cfg(feature = "cuda")]
    if by_library(&lhs, &rhs) {
        return multiply(None, lhs, rhs, DType::F32);
    }
    let output = Spec::new([lhs.shape()[0], rhs.shape()[1]], DType::F32);
    let [product] = run(vec![lhs, rhs], [output], |inputs| {
        let [lhs, rhs] = inputs.try_into().expect("two inputs");
        let product = matmul(lhs, rhs, None, MatmulStrategy::default(), DType::F32);
        [product.expect("a device multiplies what its own products would")]
    });
    product
}

/// Adds the product of `[m, k]` and `[k, n]` to `total`, in f32.
pub(crate) fn add_product(
    total: FloatTensor<Cube>,
    lhs: FloatTensor<Cube>,
    rhs: FloatTensor<Cube>,
) -> FloatTensor<Cube> {
    #[cfg(feature = "cuda")]
    if by_library(&lhs, &rhs) {
        return multiply(Some(total), lhs, rhs, DType::F32);
    }
    Cube::float_add(total, wide_product(lhs, rhs))
}

/// Returns whether NVIDIA's library multiplies these.
#[cfg(feature = "cuda")]
fn by_library(lhs: &FloatTensor<Cube>, rhs: &FloatTensor<Cube>) -> bool {
    let is_empty = |x: &FloatTensor<Cube>| x.shape().num_elements() == 0;
    owns(lhs.dtype()) && !is_empty(lhs) && !is_empty(rhs) && cublas::is_on(&lhs.device())
}

/// Multiplies by NVIDIA's library, and adds the product to `total`, which is in `dtype`.
#[cfg(feature = "cuda")]
fn multiply(
    total: Option<FloatTensor<Cube>>,
    lhs: FloatTensor<Cube>,
    rhs: FloatTensor<Cube>,
    dtype: DType,
) -> FloatTensor<Cube> {
    let output = Spec::new(cublas::product_shape(&lhs.shape(), &rhs.shape()), dtype);
    let inputs = [lhs, rhs].into_iter().chain(total).collect();
    let [product] = run(inputs, [output], move |inputs| {
        let mut inputs = inputs.into_iter();
        let mut operand = || inputs.next().expect("a product has two operands");
        let (lhs, rhs) = (operand(), operand());
        let added = inputs.next().map_or(Added::Nothing, Added::Total);
        [cublas::multiply(lhs, rhs, added, dtype)]
    });
    product
}
