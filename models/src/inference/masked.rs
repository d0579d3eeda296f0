//! The tokens at masked places.

use burn::tensor::Tensor;
use firebrick_datasets::collators::Inputs;
use firebrick_strategies::Pass;
use serde_json::{Value, json};

use super::{Answer, Inference, Question, answer, rounded, shares};
use firebrick::TrainError;

/// The number of tokens to report for each place.
const LISTED: usize = 5;

/// Answers with the text, with the most likely token at each masked place, as `predicted`, and the five most likely
/// tokens of each place with their probabilities, as `hidden`. It is [`Answers::answers`](super::Answers::answers) of a
/// masked language model, whose `forward` returns logits `[batch, length, vocabulary]`.
///
/// # Errors
///
/// The tokenizer or the device fails.
pub fn filled_in(
    questions: &[Question],
    inference: &Inference,
    forward: impl Fn(&Inputs, &Pass) -> Tensor<3>,
) -> Result<Vec<Answer>, TrainError> {
    let encoded = inference.encode_each(questions)?;
    let rows: Vec<_> = encoded.iter().filter_map(|parts| parts.first()).collect();
    let logits = inference.of_tokens(&rows, forward)?;
    let mask = inference.tokenizer.special().mask;
    let each = rows.iter().zip(&logits).map(|(row, logits)| {
        let mut ids = Vec::with_capacity(row.ids.len());
        let mut hidden: Vec<Value> = Vec::new();
        for ((&id, &special), logits) in row.ids.iter().zip(&row.special).zip(logits) {
            match (Some(id) == mask, special) {
                (true, _) => {
                    let likeliest = likeliest(logits);
                    ids.extend(likeliest.first().map(|(id, _)| *id));
                    let listed = likeliest.into_iter().map(|(id, share)| {
                            json!({"token": inference.tokenizer.piece(id), "share": rounded(share)})
                        });
                    hidden.push(listed.collect());
                }
                (false, false) => ids.push(id),
                (false, true) => {}
            }
        }
        let text = inference.tokenizer.written(&ids)?;
        Ok(answer([("predicted", text.into()), ("hidden", hidden.into())]))
    });
    each.collect()
}

/// The most likely tokens with their probabilities, most likely first.
fn likeliest(logits: &[f32]) -> Vec<(u32, f64)> {
    let mut shares: Vec<(u32, f64)> = (0..).zip(shares(logits)).collect();
    shares.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    shares.truncate(LISTED);
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_come_first() {
        let found = likeliest(&[0.0, 3.0, -1.0, 3.0, 1.0, 2.0, 9.0]);
        assert_eq!(found.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [6, 1, 3, 5, 4]);
    }
}
