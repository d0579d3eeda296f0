//! GELU over slices on all cores.

use burn::backend::Flex;
use burn::backend::flex::{FlexTensor, Layout};
use burn::backend::tensor::FloatTensor;
use burn::tensor::{Bytes, DType, FloatDType};
use pulp::{Arch, NullaryFnOnce};
use rayon::prelude::*;

use super::ops::{Gelu, GeluOps, gradient, value};
use super::vectors::{approximate, approximate_slope, exact, exact_slope};
use crate::half::HalfOps;

/// Elements that one task computes: tens of microseconds of work, so that small tensors stay on one core.
const TASK: usize = 1 << 13;

/// Elements computed at a time.
const BLOCK: usize = 256;

impl GeluOps for Flex {
    fn gelu_value(x: FloatTensor<Self>, form: Gelu) -> FloatTensor<Self> {
        match (x.dtype(), form) {
            (DType::F32, Gelu::Exact) => mapped([x], |[x]| exact(x)),
            (DType::F32, Gelu::Tanh) => mapped([x], |[x]| approximate(x)),
            (DType::F64, form) => value::<Self>(x, form),
            (dtype, form) => {
                let value = Self::gelu_value(Self::fast_cast(x, FloatDType::F32), form);
                Self::fast_cast(value, dtype.into())
            }
        }
    }

    fn gelu_gradient(x: FloatTensor<Self>, grad: FloatTensor<Self>, form: Gelu) -> FloatTensor<Self> {
        match (x.dtype(), form) {
            (DType::F32, Gelu::Exact) => mapped([x, grad], |[x, grad]| grad * exact_slope(x)),
            (DType::F32, Gelu::Tanh) => mapped([x, grad], |[x, grad]| grad * approximate_slope(x)),
            (DType::F64, form) => gradient::<Self>(x, grad, form),
            (dtype, form) => {
                let [x, grad] = [x, grad].map(|wide| Self::fast_cast(wide, FloatDType::F32));
                Self::fast_cast(Self::gelu_gradient(x, grad, form), dtype.into())
            }
        }
    }
}

/// Applies `of` to the corresponding elements of tensors of one shape.
fn mapped<const N: usize>(
    tensors: [FlexTensor; N],
    of: impl Fn([f32; N]) -> f32 + Copy + Sync,
) -> FlexTensor {
    let tensors = tensors.map(|tensor| if tensor.is_contiguous() { tensor } else { tensor.to_contiguous() });
    let shape = tensors[0].layout().shape().clone();
    let slices = tensors.each_ref().map(|tensor| {
        let layout = tensor.layout();
        &tensor.storage::<f32>()[layout.start_offset()..][..layout.num_elements()]
    });
    let arch = Arch::new();
    let length = slices[0].len();
    let block_at = |block: usize| {
        let (at, end) = (block * BLOCK, ((block + 1) * BLOCK).min(length));
        arch.dispatch(Block { slices: slices.map(|slice| &slice[at..end]), of })
    };
    // Collecting whole blocks avoids zeroing the memory first on one core.
    let mut out = Vec::with_capacity(length.div_ceil(BLOCK));
    let blocks = (0..length.div_ceil(BLOCK)).into_par_iter().with_min_len(TASK / BLOCK);
    blocks.map(block_at).collect_into_vec(&mut out);
    let mut out = out.into_flattened();
    out.truncate(length);
    FlexTensor::new(Bytes::from_elems(out), Layout::contiguous(shape), DType::F32)
}

/// The work of one core, compiled for the vectors of each kind of processor.
struct Block<'a, const N: usize, F> {
    slices: [&'a [f32]; N],
    of: F,
}

impl<const N: usize, F: Fn([f32; N]) -> f32> NullaryFnOnce for Block<'_, N, F> {
    type Output = [f32; BLOCK];

    #[inline(always)]
    fn call(self) -> [f32; BLOCK] {
        let Self { slices, of } = self;
        let mut out = [0.0; BLOCK];
        let length = slices[0].len();
        // Makes the equal lengths visible to the compiler.
        let slices = slices.map(|slice| &slice[..length]);
        for (at, out) in out[..length].iter_mut().enumerate() {
            *out = of(slices.map(|slice| slice[at]));
        }
        out
    }
}
