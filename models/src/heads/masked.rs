//! The masked tokens.

use burn::tensor::{Int, Tensor};
use firebrick::{Evaluation, Loss, Score};
use firebrick_datasets::collators::LabeledBatch;
use firebrick_datasets::{Batch, IGNORE};
use firebrick_kernels::Head;
use firebrick_strategies::Pass;

use crate::output_layer::output_loss;
use crate::perplexity::{counted, perplexity};
use crate::ragged::Tokens;

/// The loss of a batch. `hidden` computes the input of the head for some tokens, of their shape.
pub(crate) fn loss(
    batch: &LabeledBatch,
    head: &Head,
    pass: &Pass,
    hidden: impl FnOnce(&Tokens) -> Tensor<3>,
) -> Loss {
    let tokens = Tokens::of(batch.inputs(), pass);
    if tokens.is_empty() {
        return Loss::of_nothing(pass);
    }
    let (x, labels) = (hidden(&tokens), tokens.select(batch.host_labels()));
    Loss { sum: output_loss(x, head, &labels, pass), items: batch.items() }
}

/// The loss and the counts of the [scores].
pub(crate) fn evaluation(
    batch: &LabeledBatch,
    head: &Head,
    pass: &Pass,
    hidden: impl FnOnce(&Tokens) -> Tensor<3>,
) -> Evaluation {
    let tokens = Tokens::of(batch.inputs(), pass);
    if tokens.is_empty() {
        let Evaluation { loss, counts } = counted(Loss::of_nothing(pass));
        return Evaluation { loss, counts: [counts, vec![0.0]].concat() };
    }
    let x = hidden(&tokens);
    let all = tokens.select(batch.host_labels());
    let masked = (0..).zip(&all).filter(|(_, label)| **label != IGNORE);
    let (places, labels): (Vec<i32>, Vec<i32>) = masked.unzip();
    let right = match labels.is_empty() {
        // Burn has no product of no rows.
        true => 0,
        false => {
            let places = Tensor::<1, Int>::from_data(places.as_slice(), &x.device());
            let guesses = head.likeliest(x.clone().flatten::<2>(0, 1).select(0, places)).into_data();
            guesses.iter::<i32>().zip(labels).filter(|(guess, label)| guess == label).count()
        }
    };
    let loss = Loss { sum: output_loss(x, head, &all, pass), items: batch.items() };
    let Evaluation { loss, mut counts } = counted(loss);
    counts.push(right as f64);
    Evaluation { loss, counts }
}

/// `accuracy` over the masked tokens, and `perplexity`, the exponential of their mean loss.
pub(crate) fn scores(counts: &[f64]) -> Vec<Score> {
    let [loss, items, right] = counts.try_into().unwrap_or([f64::NAN; 3]);
    vec![Score::higher("accuracy", right / items), perplexity(&[loss, items])]
}
