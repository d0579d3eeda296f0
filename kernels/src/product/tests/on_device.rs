//! Affine maps and their gradients on the device of the tests, in each dtype that it computes in, beside f64.

use super::*;
use crate::testing;

/// The shape `[rows, inner, columns]` of a product, and how its operands lie in memory.
#[derive(Clone, Copy, Debug)]
struct Case {
    shape: [usize; 3],
    /// 0: plain, 1: transposed, 2: an inner block.
    view: usize,
    biased: bool,
}

impl Case {
    /// Computes in `dtype`, from numbers that `coarse` can hold, and returns the result and the gradients of the input,
    /// the weight and the bias.
    fn run(self, coarse: FloatDType, dtype: FloatDType, device: &Device) -> Vec<Vec<f64>> {
        let [rows, inner, cols] = self.shape;
        let number = |shape, seed| waves::<2>(shape, seed, coarse, device).cast(dtype);
        let leaf = |[rows, cols]: [usize; 2], seed| match self.view {
            1 => number([cols, rows], seed).require_grad(),
            2 => number([rows + 3, cols + 5], seed).require_grad(),
            _ => number([rows, cols], seed).require_grad(),
        };
        let shown = |x: &Tensor<2>, [rows, cols]: [usize; 2]| match self.view {
            1 => x.clone().transpose(),
            2 => x.clone().slice([2..rows + 2, 4..cols + 4]),
            _ => x.clone(),
        };
        let (x, weight) = (leaf([rows, inner], 1), leaf([inner, cols], 2));
        let bias = waves::<1>([cols], 3, coarse, device).cast(dtype).require_grad();
        let added = self.biased.then(|| bias.clone());
        let y = linear(shown(&x, [rows, inner]), shown(&weight, [inner, cols]), added);
        let grads = (y.clone() * number([rows, cols], 4)).cast(FloatDType::F32).sum().backward();
        let of_bias = bias.grad(&grads).map(|grad| grad.into_data().iter().collect());
        [Some(y), x.grad(&grads), weight.grad(&grads)]
            .into_iter()
            .map(|x| x.map(|x| x.into_data().iter().collect()).unwrap_or_default())
            .chain(of_bias)
            .collect()
    }
}

#[test]
fn affine_maps_and_their_gradients_equal_those_in_f64() {
    let device = testing::device().autodiff();
    // The share of the largest number up to which results are near. A GPU may sum products in f16.
    let dtypes = [
        (FloatDType::F32, testing::rounding_of_f32_products()),
        (FloatDType::BF16, 1e-2),
        (FloatDType::F16, 1e-2),
    ];
    for (dtype, share) in testing::computed(dtypes) {
        for shape in [[1, 40, 96], [7, 33, 5], [70, 16, 200], [130, 129, 67]] {
            for view in 0..3 {
                let case = Case { shape, view, biased: view != 2 };
                let found = case.run(dtype, dtype, &device);
                let expected = case.run(dtype, FloatDType::F64, &Device::flex().autodiff());
                assert_eq!(found.len(), 3 + usize::from(case.biased));
                for (which, (found, expected)) in found.iter().zip(&expected).enumerate() {
                    assert_eq!(found.len(), expected.len(), "{which} of {case:?}");
                    let most = expected.iter().fold(1f64, |most, x| most.max(x.abs()));
                    for (found, expected) in found.iter().zip(expected) {
                        let apart = (found - expected).abs();
                        assert!(
                            apart <= share * most,
                            "{which} of {case:?} in {dtype:?}: {found} {expected}"
                        );
                    }
                }
            }
        }
    }
}
