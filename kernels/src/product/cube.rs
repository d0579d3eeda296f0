//! Affine maps on a device: Burn's products, and the gradient of a bias in two kernels.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Cube, TensorMetadata};
use burn::tensor::DType;

use super::ops::{self, Products};
use crate::cube::{self, Spec, run};

impl Products for Cube {
    fn owns(dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::F16 | DType::BF16)
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
