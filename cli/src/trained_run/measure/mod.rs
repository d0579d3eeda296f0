//! Standard measures of a trained model, on data of any run.
//!
//! ```text
//! mod.rs         the measures and their results
//! likelihood.rs  how likely tokens are under the model
//! windows.rs     perplexity by windows that overlap
//! choices.rs     multiple choice by likelihood
//! texts.rs       texts that the model writes
//! ```

mod choices;
mod likelihood;
mod texts;
mod windows;

use serde::Serialize;

use super::TrainedRun;
use crate::run::local_data;
use crate::{MeasureError, RunError};
use firebrick::Scores;
use firebrick_models::decoding::Decoding;
use firebrick_tasks::{Paths, Writing};

use likelihood::Likelihood;

/// A standard measure of a trained model.
#[derive(Clone, Debug, PartialEq)]
pub enum Measure {
    /// e to the mean loss of all tokens of the texts, in windows of `window` tokens that begin `stride` tokens apart, as
    /// in Hugging Face's guide [*Perplexity of fixed-length
    /// models*](https://huggingface.co/docs/transformers/perplexity). A text has the tokens that the tokenizer puts around
    /// it, as there. Each token but a text's first counts once, with the context of its window.
    Perplexity {
        /// Tokens of a window. Default: as many as the model reads.
        window: Option<usize>,
        /// Tokens between the beginnings of two windows, below `window`. Default: half of the window.
        stride: Option<usize>,
        /// Whether the tokenizer's begin token, or else its end token, stands before each text, also if the tokenizer does
        /// not put it there.
        begins: bool,
    },
    /// The share of questions whose right ending is the most likely one, as `acc` and `acc_norm` of EleutherAI's
    /// [lm-evaluation-harness](https://github.com/EleutherAI/lm-evaluation-harness): by the log-likelihood of the ending,
    /// and by that over the ending's characters.
    Choices {
        /// Whether the tokenizer's begin token stands before each context, as with the harness's `add_bos_token`.
        begins: bool,
    },
    /// BLEU, chrF, ROUGE, and SQuAD's exact match and F1 of the texts that the model writes, against those that the
    /// records expect; see [`WrittenScores`](firebrick_models::WrittenScores).
    Texts {
        /// How texts are written.
        decoding: Decoding,
    },
}

/// The result of a measure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// The measure.
    pub measure: &'static str,
    /// The scores by name.
    pub scores: Scores,
    /// Texts, questions or records.
    pub samples: usize,
    /// Tokens that were predicted; for texts, the words that were written.
    pub tokens: usize,
    /// What `samples` and `tokens` count, in the plural: such as `questions` and `tokens`.
    #[serde(skip)]
    pub counted: [&'static str; 2],
}

impl Measured {
    fn new<'s>(
        measure: &'static str,
        scores: impl IntoIterator<Item = (&'s str, f64)>,
        [(counted, samples), (predicted, tokens)]: [(&'static str, usize); 2],
    ) -> Self {
        let scores = scores.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
        Self { measure, scores, samples, tokens, counted: [counted, predicted] }
    }
}

impl TrainedRun {
    /// Measures the model on these files, or on the run's validation files.
    ///
    /// # Errors
    ///
    /// A missing device, data that does not fit the measure, or a model that does not.
    pub fn measure(
        &self,
        measure: &Measure,
        data: Option<Paths>,
        say: impl Fn(&str),
    ) -> Result<Measured, RunError> {
        let Some(data) = data.or_else(|| self.run.data.valid.clone()) else {
            return Err(RunError::NothingAsked);
        };
        let data = local_data(&data, &say)?;
        let option = match measure {
            Measure::Texts { decoding } => return texts::texts(self, data, decoding, &say),
            Measure::Perplexity { .. } => "perplexity",
            Measure::Choices { .. } => "choices",
        };
        if !matches!(self.run.task.writing(), Some(Writing::Continuation | Writing::Answer)) {
            return Err(MeasureError::NotCausal { measure: option, task: self.run.task.name() }.into());
        }
        let model = Likelihood::open(&self.run, self.weights()?, &say)?;
        match measure {
            Measure::Choices { begins } => choices::choices(&self.run, &model, &data, *begins, &say),
            Measure::Perplexity { window, stride, begins } => {
                windows::perplexity(&self.run, &model, &data, (*window, *stride), *begins, &say)
            }
            Measure::Texts { .. } => Err(RunError::WritesNothing(self.run.task.name())),
        }
    }
}
