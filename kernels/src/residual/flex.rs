//! Sums over slices on all cores.

use std::sync::Arc;

use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;

use super::ops::ResidualOps;
use crate::dropout::DropMask;
use crate::elements::{in_blocks, mapped};

impl ResidualOps for Flex {
    fn sum(x: FloatTensor<Self>, y: FloatTensor<Self>) -> FloatTensor<Self> {
        mapped([x, y], |[x, y]| x + y)
    }

    fn sum_with_dropped(
        x: FloatTensor<Self>,
        y: FloatTensor<Self>,
        mask: Arc<DropMask>,
    ) -> FloatTensor<Self> {
        let mask = &*mask;
        in_blocks(
            [x, y],
            #[inline(always)]
            |at, [x, y]: [&[f32]; 2], sum: &mut [f32]| {
                mask.drop_from(at, y, sum);
                sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
            },
        )
    }
}
