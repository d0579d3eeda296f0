//! Rounding on all cores of the CPU.

use burn::backend::Flex;
use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, bf16, f16};
use rayon::prelude::*;

use super::Fp8;
use super::format::Rounding;
use super::ops::Fp8Products;
use crate::flex::{Buffer, Lane, TASK, adjacent, elements, tensor};

/// Elements that are rounded in one loop.
const PIECE: usize = 1 << 10;

impl Fp8Products for Flex {
    fn rounded(x: FloatTensor<Self>, format: Fp8) -> FloatTensor<Self> {
        match x.dtype() {
            DType::F32 => of::<f32>(x, format),
            DType::BF16 => of::<bf16>(x, format),
            DType::F16 => of::<f16>(x, format),
            dtype => unreachable!("8 bits are rounded from f32, bf16 and f16, not {dtype:?}"),
        }
    }
}

fn of<T: Lane>(x: FlexTensor, format: Fp8) -> FlexTensor {
    let (shape, x) = (x.shape(), adjacent(x));
    let elements = elements::<T>(&x);
    let most = |part: &[T]| part.iter().fold(0, |most, x| most.max(x.wide().to_bits() & 0x7FFF_FFFF));
    let rounding = Rounding::of(elements.par_chunks(TASK).map(most).max().unwrap_or(0), format);
    let mut found = Buffer::new(elements.len());
    found.parts(TASK).zip(elements.par_chunks(TASK)).for_each(|(mut found, elements)| {
        for (found, elements) in found.pieces(PIECE).zip(elements.chunks(PIECE)) {
            found.write(elements.len(), |at| T::narrow(rounding.round(elements[at].wide())));
        }
    });
    tensor(found.finish(), shape)
}
