//! Direct preference optimization.

use burn::tensor::activation::log_sigmoid;
use burn::tensor::{DType, Tensor, TensorData};
use firebrick_datasets::collators::{Dpo, PreferenceBatch};

use firebrick::{Loss, Score};

/// Returns the [`Dpo`] loss of each pair, `[pairs]`, from log-probabilities of the chosen and the rejected answers by the
/// model and by its reference, each `[pairs, 2]`, all in f32.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use firebrick_datasets::collators::Dpo;
/// use firebrick_models::dpo_losses;
///
/// let device = Device::flex();
/// let reference = Tensor::<2>::from_data([[-3.0, -4.0]], &device);
/// let losses = dpo_losses(reference.clone(), reference, Dpo::default());
/// assert!((losses.into_scalar::<f32>() - 2f32.ln()).abs() < 1e-6);
/// ```
pub fn dpo_losses(log_probs: Tensor<2>, reference: Tensor<2>, dpo: Dpo) -> Tensor<1> {
    let log_ratios = log_probs - reference;
    let [chosen, rejected] = [0, 1].map(|answer| log_ratios.clone().narrow(1, answer, 1).squeeze_dim::<1>(1));
    let margin = (chosen - rejected) * dpo.beta;
    match dpo.label_smoothing {
        0.0 => log_sigmoid(margin).neg(),
        swapped => {
            let (right, wrong) = (log_sigmoid(margin.clone()), log_sigmoid(margin.neg()));
            (right * (1.0 - swapped) + wrong * swapped).neg()
        }
    }
}

/// Pairs whose answers have been compared.
pub(super) struct Compared {
    /// `[pairs, 2]`.
    log_probs: Tensor<2>,
    /// `[pairs, 2]`.
    reference: Tensor<2>,
    dpo: Dpo,
}

impl Compared {
    /// `log_probs` holds one number for each row of the batch.
    pub fn of(log_probs: Tensor<1>, batch: &PreferenceBatch) -> Self {
        let [rows] = log_probs.dims();
        let (shape, device) = ([rows / 2, 2], log_probs.device());
        let reference = match batch.reference() {
            Some(numbers) => {
                Tensor::from_data(TensorData::new(numbers.to_vec(), shape), (&device, DType::F32))
            }
            None => Tensor::zeros(shape, (&device, DType::F32)),
        };
        Self { log_probs: log_probs.reshape(shape), reference, dpo: batch.dpo() }
    }

    /// The sum over pairs.
    pub fn loss(self) -> Loss {
        let [items, _] = self.log_probs.dims();
        Loss { sum: dpo_losses(self.log_probs, self.reference, self.dpo).sum(), items }
    }

    /// The sums that [`scores`] divides by the number of pairs, which is the last one.
    pub fn counts(&self) -> Vec<f64> {
        let values = |x: &Tensor<2>| x.clone().into_data().iter::<f64>().collect::<Vec<_>>();
        let (log_probs, reference) = (values(&self.log_probs), values(&self.reference));
        let mut counts = vec![0.0; COUNTS];
        for (log_probs, reference) in log_probs.chunks(2).zip(reference.chunks(2)) {
            let [chosen, rejected] =
                [0, 1].map(|answer| self.dpo.beta * (log_probs[answer] - reference[answer]));
            let accurate = f64::from(u8::from(chosen > rejected));
            let pair = [chosen, rejected, accurate, log_probs[0], log_probs[1], 1.0];
            counts.iter_mut().zip(pair).for_each(|(sum, number)| *sum += number);
        }
        counts
    }
}

/// Two rewards, whether they are in order, two log-probabilities, and the number of pairs.
const COUNTS: usize = 6;

pub(super) fn scores(counts: &[f64]) -> Vec<Score> {
    let sums: [f64; COUNTS] = counts.try_into().unwrap_or([f64::NAN; COUNTS]);
    let [chosen, rejected, accurate, logp_chosen, logp_rejected, _] = sums.map(|sum| sum / sums[COUNTS - 1]);
    vec![
        Score::higher("reward_margin", chosen - rejected),
        Score::higher("reward_accuracy", accurate),
        Score::higher("reward_chosen", chosen),
        Score::lower("reward_rejected", rejected),
        Score::higher("logp_chosen", logp_chosen),
        Score::lower("logp_rejected", logp_rejected),
    ]
}
