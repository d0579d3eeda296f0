//! Tokens in batches, and logits back on the host.

use burn::tensor::{FloatDType, Tensor, TensorReadError};
use firebrick_datasets::collators::{Inputs, Tokens};
use firebrick_datasets::{Encoding, Input};
use firebrick_kernels::cast;
use firebrick_strategies::Pass;

use super::{Inference, Question};
use firebrick::TrainError;

impl Inference {
    /// Encodes a question; the result has several parts if the text is long and `encoder` has a stride.
    pub fn encode(&self, question: &Question) -> Result<Vec<Encoding>, TrainError> {
        Ok(match question {
            Question::Text(text) => self.encoder.encode(Input::Text(text), None)?,
            Question::Pair(first, second) => {
                self.encoder.encode(Input::Text(first), Some(Input::Text(second)))?
            }
            Question::Words(words) => {
                let words: Vec<&str> = words.iter().map(String::as_str).collect();
                self.encoder.encode(Input::Words(&words), None)?
            }
        })
    }

    /// Encodes each question.
    pub fn encode_each(&self, questions: &[Question]) -> Result<Vec<Vec<Encoding>>, TrainError> {
        questions.iter().map(|question| self.encode(question)).collect()
    }

    /// The logits of each row's real tokens, `[length, classes]`, computed in batches.
    pub fn of_tokens(
        &self,
        rows: &[&Encoding],
        forward: impl Fn(&Inputs, &Pass) -> Tensor<3>,
    ) -> Result<Vec<Vec<Vec<f32>>>, TrainError> {
        let mut found = Vec::with_capacity(rows.len());
        self.each_batch(rows, forward, |inputs, [_, length, classes], numbers| {
            let of_rows =
                numbers.chunks((length * classes).max(1)).zip(inputs.host_mask().chunks(length.max(1)));
            found.extend(of_rows.map(|(numbers, real)| {
                let tokens = numbers.chunks(classes.max(1)).zip(real);
                tokens.filter(|(_, real)| **real).map(|(logits, _)| logits.to_vec()).collect::<Vec<_>>()
            }));
        })?;
        Ok(found)
    }

    /// The logits of whole rows, computed in batches.
    pub fn of_rows(
        &self,
        rows: &[&Encoding],
        forward: impl Fn(&Inputs, &Pass) -> Tensor<2>,
    ) -> Result<Vec<Vec<f32>>, TrainError> {
        let mut found = Vec::with_capacity(rows.len());
        self.each_batch(rows, forward, |_, [_, classes], numbers| {
            found.extend(numbers.chunks(classes.max(1)).map(<[f32]>::to_vec));
        })?;
        Ok(found)
    }

    /// Calls `take` with each batch of rows and its logits, in f32 on the host.
    fn each_batch<const D: usize>(
        &self,
        rows: &[&Encoding],
        forward: impl Fn(&Inputs, &Pass) -> Tensor<D>,
        mut take: impl FnMut(&Inputs, [usize; D], &[f32]),
    ) -> Result<(), TrainError> {
        let (pad, pass) = (self.tokenizer.special().pad.unwrap_or(0), Pass::evaluate(&self.device));
        for some in rows.chunks(self.rows.max(1)) {
            let tokens = some.iter().map(|row| Tokens::of((*row).clone(), self.encoder.tokenizer()));
            let tokens: Vec<Tokens> = tokens.collect();
            let inputs = Inputs::new(&tokens.iter().collect::<Vec<_>>(), &self.padding, pad)?;
            let logits = cast(forward(&inputs, &pass), FloatDType::F32);
            let numbers: Vec<f32> =
                logits.clone().try_into_data().map_err(TensorReadError::from)?.iter().collect();
            take(&inputs, logits.dims(), &numbers);
        }
        Ok(())
    }
}
