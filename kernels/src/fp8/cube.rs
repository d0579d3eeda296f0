//! Maps on a device: by NVIDIA's library where it multiplies 8-bit numbers, or else of rounded operands.

use burn::backend::ops::FloatTensorOps;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Cube, Flex, TensorMetadata};
use burn::tensor::read_sync;

use super::Fp8;
#[cfg(feature = "cuda")]
use super::library;
#[cfg(feature = "cuda")]
use super::ops;
use super::ops::Fp8Products;
use super::rounding::rounded;
use crate::cube::{Spec, contiguous, run};
use crate::off::Kernel;

impl Fp8Products for Cube {
    fn rounded(x: FloatTensor<Self>, format: Fp8) -> FloatTensor<Self> {
        if Kernel::Products.is_off() {
            return on_the_host(x, format);
        }
        let output = Spec::new(x.shape(), x.dtype());
        let [rounded] = run(vec![x], [output], move |inputs| {
            let [x] = inputs.try_into().expect("one input");
            [rounded(contiguous(x), format)]
        });
        rounded
    }

    #[cfg(feature = "cuda")]
    fn fp8_map(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
    ) -> FloatTensor<Self> {
        match library::multiplies(&x) {
            true => library::map(x, weight, bias),
            false => ops::map::<Self>(x, weight, bias),
        }
    }

    #[cfg(feature = "cuda")]
    fn fp8_gradients(
        x: Option<FloatTensor<Self>>,
        weight: Option<FloatTensor<Self>>,
        grad: FloatTensor<Self>,
    ) -> [Option<FloatTensor<Self>>; 2] {
        match library::multiplies(&grad) {
            true => library::gradients(x, weight, grad),
            false => ops::gradients::<Self>(x, weight, grad),
        }
    }
}

/// Rounds without a kernel: copies the numbers to the host and back.
fn on_the_host(x: FloatTensor<Cube>, format: Fp8) -> FloatTensor<Cube> {
    let device = x.device();
    let data = read_sync(Cube::float_into_data(x)).expect("a tensor of a device can be read");
    let rounded = Flex::rounded(Flex::float_from_data(data, &Default::default()), format);
    let data = read_sync(Flex::float_into_data(rounded)).expect("the CPU's memory can be read");
    Cube::float_from_data(data, &device)
}
