//! A label for each word, a class for each text, or the tokens at masked places.

use burn::tensor::Tensor;
use firebrick::TrainError;
use firebrick_datasets::collators::Inputs;
use firebrick_strategies::Pass;
use serde_json::{Value, json};

use super::{Answer, Inference, LabelKind, Question, answer, largest, rounded, shares};

/// Answers with a label for each word, that of its first token, or `null` for a word without tokens, as `predicted`,
/// and the probabilities of these labels as `scores`. A text longer than the model's input is read in parts. It is
/// [`Answers::answers`](super::Answers::answers) of a token classifier, whose `forward` returns logits
/// `[batch, length, classes]`.
///
/// # Errors
///
/// The tokenizer or the device fails.
pub fn word_labels(
    questions: &[Question],
    inference: &Inference,
    forward: impl Fn(&Inputs, &Pass) -> Tensor<3>,
) -> Result<Vec<Answer>, TrainError> {
    let encoded = inference.encode_each(questions)?;
    let rows: Vec<_> = encoded.iter().flatten().collect();
    let mut logits = inference.of_tokens(&rows, forward)?.into_iter();
    let each = questions.iter().zip(&encoded).map(|(question, parts)| {
        let words = match question {
            Question::Words(words) => words.len(),
            Question::Text(_) | Question::Pair(..) => 0,
        };
        let mut found: Vec<Option<(usize, f64)>> = vec![None; words];
        for (part, logits) in parts.iter().zip(logits.by_ref()) {
            for (word, logits) in part.words.iter().zip(logits) {
                let Some(place) = word.and_then(|word| found.get_mut(word as usize)) else { continue };
                let shares = shares(&logits);
                let best = largest(&shares);
                place.get_or_insert((best, shares[best]));
            }
        }
        let name = |(class, _): &(usize, f64)| json!(inference.labels.get(*class));
        let named = |place: &Option<(usize, f64)>| place.as_ref().map_or(Value::Null, name);
        let score = |place: &Option<(usize, f64)>| place.map_or(Value::Null, |(_, share)| rounded(share));
        answer([
            ("predicted", found.iter().map(named).collect()),
            ("scores", found.iter().map(score).collect()),
        ])
    });
    Ok(each.collect())
}

/// Answers with a class, a list of classes, or a number, as `predicted`, and the probability of each class as `scores`.
/// A text longer than the model's input is cut. It is [`Answers::answers`](super::Answers::answers) of a sequence
/// classifier, whose `forward` returns logits `[batch, classes]`.
///
/// # Errors
///
/// The tokenizer or the device fails.
pub fn text_classes(
    questions: &[Question],
    inference: &Inference,
    forward: impl Fn(&Inputs, &Pass) -> Tensor<2>,
) -> Result<Vec<Answer>, TrainError> {
    let encoded = inference.encode_each(questions)?;
    let rows: Vec<_> = encoded.iter().filter_map(|parts| parts.first()).collect();
    let logits = inference.of_rows(&rows, forward)?;
    Ok(logits.iter().map(|logits| of_text(logits, inference)).collect())
}

fn of_text(logits: &[f32], inference: &Inference) -> Answer {
    let by_name = |shares: &[f64]| -> Value {
        let named = inference.labels.iter().zip(shares);
        Value::Object(named.map(|(name, share)| (name.clone(), rounded(*share))).collect())
    };
    match inference.kind {
        LabelKind::Class => {
            let shares = shares(logits);
            let predicted = json!(inference.labels.get(largest(&shares)));
            answer([("predicted", predicted), ("scores", by_name(&shares))])
        }
        LabelKind::Classes => {
            let shares: Vec<f64> = logits.iter().map(|logit| 1.0 / (1.0 + f64::from(-logit).exp())).collect();
            let named = inference.labels.iter().zip(logits);
            let predicted = named.filter(|(_, logit)| **logit > 0.0).map(|(name, _)| json!(name));
            answer([("predicted", predicted.collect()), ("scores", by_name(&shares))])
        }
        LabelKind::Number => answer([("predicted", json!(logits.first()))]),
    }
}

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
