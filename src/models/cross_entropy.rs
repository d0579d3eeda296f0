//! The loss of a language model.

use burn::tensor::{FloatDType, Int, Tensor, activation::log_softmax};
use firebrick_datasets::IGNORE;
use firebrick_strategies::cast;

/// The sum over supervised positions of the negative log-likelihood of the label, shape `[1]`, f32.
///
/// `logits` is `[positions, vocabulary]` in any float dtype and is widened first; `labels` is
/// `[positions]`, with -100 where a position is not supervised: it adds exactly 0 to the sum and to
/// every gradient.
pub fn cross_entropy(logits: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
    let ignored = labels.clone().equal_scalar(IGNORE);
    let picked = labels.mask_fill(ignored.clone(), 0);
    let likelihood =
        log_softmax(cast(logits, FloatDType::F32), 1).gather(1, picked.unsqueeze_dim(1)).squeeze_dim::<1>(1);
    likelihood.mask_fill(ignored, 0.0).sum().neg()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn the_sum_equals_the_definition_and_ignored_positions_add_nothing() {
        let device = testing::device().autodiff();
        let logits = Tensor::<2>::from_data([[1.0, 2.0, 0.5], [0.0, 0.0, 9.0]], &device);
        let logits = logits.require_grad();
        let labels = Tensor::<1, Int>::from_data([1, -100], &device);
        let loss = cross_entropy(logits.clone(), labels);
        let expected = (1f64.exp() + 2f64.exp() + 0.5f64.exp()).ln() - 2.0;
        assert!((loss.clone().into_scalar::<f64>() - expected).abs() < 1e-6);
        let grads = loss.backward();
        let grad = logits.grad(&grads).unwrap().into_data();
        let row: Vec<f32> = grad.iter::<f32>().skip(3).collect();
        assert_eq!(row, [0.0; 3]);
    }

    #[test]
    fn no_supervised_position_gives_zero_and_not_nan() {
        let device = testing::device().autodiff();
        let logits = Tensor::<2>::ones([2, 3], &device).require_grad();
        let labels = Tensor::<1, Int>::from_data([-100, -100], &device);
        let loss = cross_entropy(logits.clone(), labels);
        assert_eq!(loss.clone().into_scalar::<f32>(), 0.0);
        let grads = loss.backward();
        let grad = logits.grad(&grads).unwrap().into_data();
        assert!(grad.iter::<f32>().all(|x| x == 0.0));
    }
}
