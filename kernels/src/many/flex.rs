//! The passes on Flex, on all cores: Flex itself multiplies and sums on one.

use burn::backend::Flex;
use burn::backend::flex::FlexTensor;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, Shape, bf16, f16};
use rayon::prelude::*;

use super::ops::{self, ManyOps};
use crate::elements::{is_narrow, mapped};
use crate::flex::{Lane, TASK, adjacent, elements, sum_of, tensor};
use crate::off::Kernel;

impl ManyOps for Flex {
    fn squared_sum(x: FloatTensor<Self>) -> FloatTensor<Self> {
        let sum = match x.dtype() {
            _ if Kernel::Many.is_off() => return ops::squared_sum::<Self>(x),
            DType::F32 => squares::<f32>(x),
            DType::BF16 => squares::<bf16>(x),
            DType::F16 => squares::<f16>(x),
            _ => return ops::squared_sum::<Self>(x),
        };
        tensor(vec![sum as f32], Shape::new([1]))
    }

    fn scaled(x: FloatTensor<Self>, factor: FloatTensor<Self>) -> FloatTensor<Self> {
        match is_narrow(x.dtype()) && is_narrow(factor.dtype()) && !Kernel::Many.is_off() {
            true => {
                let factor = crate::flex::widened(factor)[0];
                mapped([x], |[x]| x * factor)
            }
            false => ops::scaled::<Self>(x, factor),
        }
    }
}

/// Sums the squares of each task's share in f32, and these sums in f64, in an order that does not depend on the number of
/// threads.
fn squares<T: Lane>(x: FlexTensor) -> f64 {
    let x = adjacent(x);
    let share = |share: &[T]| {
        f64::from(sum_of([share], |[x]| {
            let x = x.wide();
            x * x
        }))
    };
    let sums: Vec<f64> = elements::<T>(&x).par_chunks(TASK).map(share).collect();
    sums.into_iter().sum()
}
