//! The gradient of a map in 8 bits, and of rounding.

use std::array::from_fn;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, TensorMetadata};

use super::Fp8;
use super::ops::{Fp8Ops, Fp8Products, in_fp8};
use crate::autodiff::{differentiable, differentiable_with_inputs};
use crate::product::{of_rows, rows, value};

/// Computes the map of an input, a weight, and a bias if there are three.
fn mapped<B: Fp8Products, C: CheckpointStrategy, const N: usize>(
    operands: [FloatTensor<Autodiff<B, C>>; N],
) -> FloatTensor<Autodiff<B, C>> {
    let mut keeps = [false; N];
    (keeps[0], keeps[1]) = (operands[1].is_tracked(), operands[0].is_tracked());
    differentiable_with_inputs::<B, C, _, N>(
        operands,
        keeps,
        |operands| {
            let mut operands = operands.into_iter();
            let mut next = || operands.next().expect("a map has an input and a weight");
            let (x, weight) = (next(), next());
            let bias = operands.next();
            let map = |x, weight| of_rows::<B>(x, |rows| B::fp8_map(rows, weight, bias));
            (value::<B>(x, weight, map), ())
        },
        |operands, (), grad, wanted| {
            let mut operands = operands.into_iter();
            let mut next = || operands.next().flatten();
            let (x, weight) = (next().map(rows::<B>), next());
            let mut shape = grad.shape();
            if let Some(weight) = &weight {
                let last = shape.num_dims() - 1;
                shape[last] = weight.shape()[0];
            }
            let grad = rows::<B>(grad);
            let of_bias = wanted.get(2).is_some_and(|wanted| *wanted).then(|| B::column_sums(grad.clone()));
            let [of_x, of_weight] = B::fp8_gradients(x, weight, grad);
            let of_x = of_x.map(|of_x| B::float_reshape(of_x, shape));
            let mut found = [of_x, of_weight, of_bias].into_iter();
            from_fn(|_| found.next().flatten())
        },
    )
}

impl<B: Fp8Products, C: CheckpointStrategy> Fp8Ops for Autodiff<B, C> {
    fn round_to_fp8(x: FloatTensor<Self>, format: Fp8) -> FloatTensor<Self> {
        // Rounding is taken for the identity.
        differentiable::<B, C, _, _>([x], |[x]| (in_fp8::<B>(x, format), ()), |(), grad, _| [Some(grad)])
    }

    fn fp8_product(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        mapped::<B, C, 2>([x, weight])
    }

    fn fp8_affine(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        mapped::<B, C, 3>([x, weight, bias])
    }
}
