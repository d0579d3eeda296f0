//! Affine maps on a device: Burn's products, and the gradient of a bias.

use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Cube, TensorMetadata};
use burn::tensor::{DType, Shape};

use super::ops::{self, Products, of_rows};
use crate::cube::{self, Spec, run};
use crate::off::Kernel;

impl Products for Cube {
    fn owns(dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::F16 | DType::BF16) && !Kernel::Products.is_off()
    }

    /// Adds the bias in the shape of the result, so that the queue can fuse the sum with what follows.
    fn affine(x: FloatTensor<Self>, weight: FloatTensor<Self>, bias: FloatTensor<Self>) -> FloatTensor<Self> {
        let product = of_rows::<Self>(x, |rows| Self::float_matmul(rows, weight));
        let mut shape = vec![1; product.rank()];
        shape[product.rank() - 1] = bias.shape().num_elements();
        Self::float_add(product, Self::float_reshape(bias, Shape::from(shape)))
    }

    fn column_sums(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let (shape, dtype) = (x.shape(), x.dtype());
        if shape.num_elements() == 0 || !Self::owns(dtype) {
            return ops::column_sums::<Self>(x);
        }
        let [sums] = run(vec![x], [Spec::new([shape[1]], dtype)], |inputs| {
            let [x] = inputs.try_into().expect("one input");
            [cube::column_sums(x)]
        });
        sums
    }
}
