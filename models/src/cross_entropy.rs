//! The cross-entropy loss, of tokens and of whole texts.

use burn::tensor::activation::log_sigmoid;
use burn::tensor::{FloatDType, Int, Tensor};
use firebrick::Loss;
use firebrick_datasets::Batch;
use firebrick_datasets::collators::SequenceBatch;
use firebrick_kernels as kernels;
use firebrick_kernels::cast;
use firebrick_strategies::Pass;

/// The negative log-likelihood of the labels, summed over the supervised positions, shape `[1]`, f32.
///
/// `logits` is `[positions, vocabulary]` in any float dtype; the loss is computed in f32. `labels` is `[positions]`, with
/// -100 for unsupervised positions, which add exactly 0 to the sum and to every gradient.
pub fn cross_entropy(logits: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
    kernels::cross_entropy(logits, labels, 0.0)
}

/// [`cross_entropy`] with smoothed labels: during training, the labels are smoothed by the pass's
/// [share](Pass::label_smoothing) ε.
///
/// With C classes of probabilities p, the loss of a position with label y equals that of
/// `torch.nn.functional.cross_entropy`:
///
/// ```text
/// (1 - ε) · -ln p(y)  +  ε/C · Σ -ln p(c)
/// ```
pub fn smoothed_cross_entropy(logits: Tensor<2>, labels: Tensor<1, Int>, pass: &Pass) -> Tensor<1> {
    kernels::cross_entropy(logits, labels, pass.label_smoothing())
}

/// The loss summed over the items of a batch, f32: the negative log-likelihood if each row has one class; the binary
/// cross-entropy of each class if a row has several; the squared error for numbers. With one class per row, labels
/// are [smoothed](Pass::label_smoothing).
///
/// `logits` is `[rows, classes]` in any float dtype and is cast to f32 first.
///
/// # Panics
///
/// If a class of the batch is not below the number of logits, or numbers meet more than one logit.
pub fn sequence_loss(logits: Tensor<2>, batch: &SequenceBatch, pass: &Pass) -> Loss {
    let (device, items) = (logits.device(), batch.items());
    let logits = cast(logits, FloatDType::F32);
    let sum = if let Some(classes) = batch.classes(&device) {
        smoothed_cross_entropy(logits, classes, pass)
    } else if let Some(flags) = batch.multi_hot(&device) {
        let off = log_sigmoid(logits.clone().neg());
        (flags.clone() * log_sigmoid(logits) + (flags.neg() + 1.0) * off).sum().neg()
    } else if let Some(numbers) = batch.numbers(&device) {
        assert_eq!(logits.dims()[1], 1, "a number is predicted by one logit: num_labels must be 1");
        (logits.squeeze_dim::<1>(1) - numbers).square().sum()
    } else {
        logits.sum() * 0.0
    };
    Loss { sum, items }
}

#[cfg(test)]
mod tests {
    use burn::tensor::TensorData;

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

    #[test]
    fn smoothed_labels_are_those_of_torch() {
        #[derive(serde::Deserialize)]
        struct Golden {
            logits: Vec<[f32; 4]>,
            labels: Vec<i32>,
            cases: Vec<Case>,
        }
        #[derive(serde::Deserialize)]
        struct Case {
            share: f64,
            loss: f64,
            grad: Vec<[f32; 4]>,
        }
        let golden: Golden =
            serde_json::from_str(include_str!("../../tests/golden/label_smoothing.json")).unwrap();
        let device = testing::device().autodiff();
        let logits = || {
            let values = TensorData::new(golden.logits.concat(), [golden.logits.len(), 4]);
            Tensor::<2>::from_data(values, &device).require_grad()
        };
        let labels = Tensor::<1, Int>::from_data(golden.labels.as_slice(), &device);
        for Case { share, loss, grad } in golden.cases {
            let (logits, pass) = (logits(), Pass::train(&device).smoothing_labels(share));
            let found = smoothed_cross_entropy(logits.clone(), labels.clone(), &pass);
            assert!((found.clone().into_scalar::<f64>() - loss).abs() < 1e-5, "{share}");
            let grads = found.backward();
            let found: Vec<f32> = logits.grad(&grads).unwrap().into_data().iter().collect();
            let apart = found.iter().zip(grad.concat()).map(|(found, expected)| (found - expected).abs());
            assert!(apart.fold(0.0, f32::max) < 1e-6, "{share}");
        }
        // An evaluation pass reports the loss without smoothing.
        let measured =
            smoothed_cross_entropy(logits(), labels.clone(), &Pass::evaluate(&device).smoothing_labels(0.5));
        assert_eq!(measured.into_data(), cross_entropy(logits(), labels).into_data());
    }
}
