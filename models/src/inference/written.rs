//! Texts that continue a prompt, or follow from a source.

use firebrick_datasets::DataError;
use firebrick_datasets::collators::{Inputs, Tokens};
use serde_json::json;

use super::{Answer, Inference, Question, answer};
use crate::decoding::{End, Prompt, Text};
use crate::{Continues, Writes};
use firebrick::TrainError;

/// Answers with the continuation of each text, as `predicted`: the prompt's text and this one are the text of both. It is
/// [`Answers::answers`](super::Answers::answers) of a causal language model.
///
/// An end token that the tokenizer adds is removed before reading.
///
/// # Errors
///
/// The tokenizer or the device fails.
pub fn continued<M: Continues>(
    model: &M,
    questions: &[Question],
    inference: &Inference,
) -> Result<Vec<Answer>, TrainError> {
    let end = inference.tokenizer.special().eos;
    let prompts = (0..).zip(questions).map(|(row, question)| {
        let parts = inference.encode(question)?;
        let mut ids = parts.into_iter().next().map(|part| part.ids).unwrap_or_default();
        if ids.last().copied() == end {
            ids.pop();
        }
        Ok(Prompt::new(inference.first + row, ids))
    });
    let prompts = prompts.collect::<Result<Vec<_>, TrainError>>()?;
    let mut answers = Vec::with_capacity(prompts.len());
    for some in prompts.chunks(inference.rows.max(1)) {
        let written = match &inference.among {
            None => model.continued(some, &inference.decoding)?,
            Some((world, pass)) => model.continued_among(world, pass, some, &inference.decoding)?,
        };
        for (prompt, texts) in some.iter().zip(written) {
            // Both are decoded together, since a decoder may remove the space at the beginning of a text.
            let decoded = |ids: &[u32]| inference.tokenizer.continuation(&prompt.tokens, ids);
            answers.push(of_texts(&texts, decoded)?);
        }
    }
    Ok(answers)
}

/// Answers with the text generated from each source, as `predicted`. It is
/// [`Answers::answers`](super::Answers::answers) of a model with an encoder and a decoder.
///
/// # Errors
///
/// The tokenizer or the device fails.
pub fn written_from<M: Writes>(
    model: &M,
    questions: &[Question],
    inference: &Inference,
) -> Result<Vec<Answer>, TrainError> {
    let sources = questions.iter().map(|question| {
        let part = inference.encode(question)?.into_iter().next();
        Ok(part.map(|part| Tokens::of(part, inference.encoder.tokenizer())).unwrap_or_default())
    });
    let sources = sources.collect::<Result<Vec<_>, TrainError>>()?;
    let pad = inference.tokenizer.special().pad.unwrap_or(0);
    let mut answers = Vec::with_capacity(sources.len());
    for (some, first) in sources.chunks(inference.rows.max(1)).zip((0..).step_by(inference.rows.max(1))) {
        let rows: Vec<_> = some.iter().collect();
        let inputs = Inputs::new(&rows, &inference.padding, pad)?;
        let prompts = (inference.first + first..).take(rows.len());
        let prompts: Vec<_> = prompts.map(|row| Prompt::new(row, [inference.start])).collect();
        let written = match &inference.among {
            None => model.written_from(&inputs, &prompts, &inference.decoding)?,
            Some((world, pass)) => {
                model.written_among(world, pass, &inputs, &prompts, &inference.decoding)?
            }
        };
        for texts in written {
            answers.push(of_texts(&texts, |ids| inference.tokenizer.written(ids))?);
        }
    }
    Ok(answers)
}

/// The best text, and all texts if several are requested.
fn of_texts(
    texts: &[Text],
    decode: impl Fn(&[u32]) -> Result<String, DataError>,
) -> Result<Answer, TrainError> {
    let decoded = |text: &Text| decode(text.without_end());
    let first = texts.first().map(decoded).transpose()?.unwrap_or_default();
    let mut fields = answer([
        ("predicted", first.into()),
        ("log_probability", json!(texts.first().map(|text| text.log_probability))),
        ("ended", json!(texts.first().is_some_and(|text| text.end == End::Token))),
    ]);
    if texts.len() > 1 {
        let all = texts.iter().map(decoded).collect::<Result<Vec<_>, _>>()?;
        fields.insert("texts".into(), json!(all));
    }
    Ok(fields)
}
