//! What follows a text, or is made of it.

use firebrick_datasets::{Inputs, Tokens};
use serde_json::json;

use super::{Answer, Answers, Asking, Question, answer};
use crate::TrainError;
use crate::decoding::{End, Prompt, Text};
use crate::models::{Continues, Gpt, Llama, T5};

impl Answers for Gpt {
    fn answers(&self, questions: &[Question], asking: &Asking) -> Result<Vec<Answer>, TrainError> {
        continued(self, questions, asking)
    }
}

impl Answers for Llama {
    fn answers(&self, questions: &[Question], asking: &Asking) -> Result<Vec<Answer>, TrainError> {
        continued(self, questions, asking)
    }
}

/// `predicted` is what follows the text; the end token that a tokenizer adds is not read.
fn continued<M: Continues>(
    model: &M,
    questions: &[Question],
    asking: &Asking,
) -> Result<Vec<Answer>, TrainError> {
    let end = asking.tokenizer.special().eos;
    let prompts = (0..).zip(questions).map(|(row, question)| {
        let parts = asking.encode(question)?;
        let mut ids = parts.into_iter().next().map(|part| part.ids).unwrap_or_default();
        if ids.last().copied() == end {
            ids.pop();
        }
        Ok(Prompt::new(asking.first + row, ids))
    });
    let prompts = prompts.collect::<Result<Vec<_>, TrainError>>()?;
    let mut answers = Vec::with_capacity(prompts.len());
    for some in prompts.chunks(asking.rows.max(1)) {
        let written = match &asking.among {
            None => model.continued(some, &asking.decoding)?,
            Some((world, pass)) => model.continued_among(world, pass, some, &asking.decoding)?,
        };
        for texts in written {
            answers.push(of_texts(&texts, asking)?);
        }
    }
    Ok(answers)
}

impl Answers for T5 {
    /// `predicted` is the text that is made of the source.
    fn answers(&self, questions: &[Question], asking: &Asking) -> Result<Vec<Answer>, TrainError> {
        let sources = questions.iter().map(|question| {
            let part = asking.encode(question)?.into_iter().next();
            Ok(part.map(|part| Tokens::of(part, asking.encoder.tokenizer())).unwrap_or_default())
        });
        let sources = sources.collect::<Result<Vec<_>, TrainError>>()?;
        let pad = asking.tokenizer.special().pad.unwrap_or(0);
        let mut answers = Vec::with_capacity(sources.len());
        for (some, first) in sources.chunks(asking.rows.max(1)).zip((0..).step_by(asking.rows.max(1))) {
            let rows: Vec<_> = some.iter().collect();
            let inputs = Inputs::new(&rows, &asking.padding, pad)?;
            let prompts = (asking.first + first..).take(rows.len());
            let prompts: Vec<_> = prompts.map(|row| Prompt::new(row, [asking.start])).collect();
            let written = match &asking.among {
                None => self.written_from(&inputs, &prompts, &asking.decoding)?,
                Some((world, pass)) => {
                    self.written_among(world, pass, &inputs, &prompts, &asking.decoding)?
                }
            };
            for texts in written {
                answers.push(of_texts(&texts, asking)?);
            }
        }
        Ok(answers)
    }
}

/// The best text, and the others where several are asked for.
fn of_texts(texts: &[Text], asking: &Asking) -> Result<Answer, TrainError> {
    let decoded = |text: &Text| asking.tokenizer.decode(text.without_end());
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
