//! Operations of which only the memory is of interest.

use std::cell::Cell;
use std::thread::LocalKey;

thread_local! {
    static ZERO: Cell<bool> = const { Cell::new(false) };
}

/// Runs operations of which only the memory is of interest. On the CPU, products, attention, norms, casts and maps over
/// elements of this crate, also those of gradients, take the memory that they take outside without being computed: they are
/// 0, or whatever their memory held. So are the losses of logits. Ids and labels count as 0, so that a model may have fewer
/// than they name.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_kernels::{matmul, with_zero_results};
///
/// let x = Tensor::<2>::from_data([[1.0, 2.0]], &Device::flex());
/// let weight = Tensor::from_data([[3.0], [4.0]], &Device::flex());
/// assert_eq!(with_zero_results(|| matmul(x, weight)).into_scalar::<f32>(), 0.0);
/// ```
pub fn with_zero_results<T>(run: impl FnOnce() -> T) -> T {
    within(&ZERO, true, run)
}

/// Returns whether this thread's results are [0](with_zero_results).
pub(crate) fn are_zero() -> bool {
    ZERO.get()
}

/// Runs with another value of a thread's setting, and puts back what it was.
pub(crate) fn within<S: Copy + 'static, T>(
    setting: &'static LocalKey<Cell<S>>,
    value: S,
    run: impl FnOnce() -> T,
) -> T {
    struct Restore<S: Copy + 'static>(&'static LocalKey<Cell<S>>, S);
    impl<S: Copy> Drop for Restore<S> {
        fn drop(&mut self) {
            self.0.set(self.1);
        }
    }
    let _restore = Restore(setting, setting.replace(value));
    run()
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Distribution, FloatDType, Int, Tensor};

    use super::with_zero_results;
    use crate::{Attending, Gelu, Head, HeadWeight, Reads, attention, embedding, gelu, head_loss};

    /// Attention over embedded ids, an activation and the loss of a head: the results, then the gradients.
    fn pass(dtype: FloatDType, labels: [i32; 6]) -> Vec<(Vec<usize>, FloatDType, Vec<f32>)> {
        let device = Device::flex().autodiff();
        let random = |shape: [usize; 2]| {
            Tensor::<2>::random(shape, Distribution::Default, &device).cast(dtype).require_grad()
        };
        let (table, weight) = (random([5, 8]), random([8, 5]));
        let ids = Tensor::<1, Int>::from_data(labels, &device);
        let x = embedding(table.clone(), ids.reshape([2, 3]));
        let heads = x.clone().reshape([2, 3, 2, 4]).swap_dims(1, 2);
        let reads = Reads::causal(3);
        let how = Attending { reads: &reads, scale: 0.5, cap: None, dropout: None };
        let y = attention(heads.clone(), heads.clone(), heads, None, how).swap_dims(1, 2).reshape([6, 8]);
        let activated = gelu(y.clone(), Gelu::Exact);
        let head = Head { weight: HeadWeight::Linear(weight.clone()), bias: None, cap: None };
        let loss = head_loss(activated.clone(), &head, &labels, 0.0);
        let grads = loss.clone().backward();
        let all = [y.inner(), activated.inner(), table.grad(&grads).unwrap(), weight.grad(&grads).unwrap()];
        let seen = |x: Tensor<2>| {
            let (shape, dtype) = (x.dims().to_vec(), x.dtype().into());
            (shape, dtype, x.cast(FloatDType::F32).into_data().iter::<f32>().collect())
        };
        let mut seen: Vec<_> = all.into_iter().map(seen).collect();
        seen.push((vec![1], loss.dtype().into(), loss.into_data().iter::<f32>().collect()));
        seen
    }

    #[test]
    fn results_have_their_shapes_and_dtypes() {
        for dtype in [FloatDType::F32, FloatDType::BF16, FloatDType::F16] {
            let computed = pass(dtype, [0, 1, 2, 3, 4, 0]);
            // Ids beyond the table would be refused outside.
            let zeros = with_zero_results(|| pass(dtype, [0, 1, 2, 3, 99, 7]));
            assert_eq!(zeros.len(), computed.len());
            for (zero, computed) in zeros.iter().zip(&computed) {
                assert_eq!((&zero.0, zero.1), (&computed.0, computed.1));
                assert!(computed.2.iter().all(|value| value.is_finite()));
                assert!(computed.2.iter().any(|value| *value != 0.0));
            }
            let is_zero = |at: usize| zeros[at].2.iter().all(|value| *value == 0.0);
            assert!(is_zero(0) && is_zero(3) && is_zero(4), "{dtype:?}");
        }
    }
}
