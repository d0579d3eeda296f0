//! Predictions of a trained model for the records of a file.

use std::io::Write;
use std::sync::Arc;

use firebrick_datasets::{Skipped, Tokenizer};
use serde_json::{Map, Value, json};

use super::TrainedRun;
use crate::run::{Paths, open};
use crate::{Run, RunError};
use firebrick::TrainError;
use firebrick_models::decoding::Decoding;
use firebrick_models::family::Trainable;
use firebrick_models::inference::{Answer, Answers, Inference, Question};
use firebrick_models::pretrained::Folder;

/// The number of predictions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Predicted {
    /// Number of predictions written.
    pub answers: usize,
    /// Number of predictions that equal the expected value.
    pub right: usize,
    /// Number of records with an expected value.
    pub expected: usize,
}

impl TrainedRun {
    /// Writes a line of JSON for each record of the files, or of the run's validation data if `data` is `None`. The
    /// files are read with the run's data settings. At most `limit` records are predicted.
    ///
    /// A line has the input (`tokens` or `text`), the `predicted` value, and the `expected` value if the record has
    /// one; records need no labels. The other fields depend on the task:
    ///
    /// | Task | `predicted` | Other fields |
    /// |---|---|---|
    /// | `TokenClassification` | a label for each word | `scores`, the labels' probabilities |
    /// | `SequenceClassification` | a class, classes, or a number | `scores`, the probability of each class |
    /// | `MaskedLm` | the text with its masks filled in | `hidden`, the most likely tokens of each place |
    /// | `CausalLm` | the continuation of the prompt, or the last answer of a conversation | `log_probability`, and whether an end token `ended` it |
    /// | `Seq2Seq` | the text generated from the source | the same |
    ///
    /// `decoding` sets how to generate texts.
    ///
    /// # Errors
    ///
    /// A missing device, unreadable records, or an output that cannot be written.
    pub fn predict(
        &self,
        data: Option<Paths>,
        limit: Option<usize>,
        decoding: &Decoding,
        output: &mut dyn Write,
        say: impl Fn(&str),
    ) -> Result<Predicted, RunError> {
        let Some(data) = data.or_else(|| self.run.data.valid.clone()) else {
            return Err(RunError::NothingAsked);
        };
        let predicting = Predicting { run: &self.run, data, limit, decoding, output, say: &say };
        let folder = self.weights()?;
        self.run.model_in(&folder)?.predict(predicting, &folder)
    }
}

/// Predictions to be made, by a model of any type.
pub(crate) struct Predicting<'a> {
    run: &'a Run,
    data: Paths,
    limit: Option<usize>,
    decoding: &'a Decoding,
    output: &'a mut dyn Write,
    say: &'a dyn Fn(&str),
}

/// The number of records to tokenize and sort together.
const TOGETHER: usize = 256;

impl Predicting<'_> {
    pub fn with<M: Trainable>(mut self, folder: &Folder) -> Result<Predicted, RunError> {
        let (device, _) = self.run.find_device(self.say)?;
        let config = folder.config::<M::Config>()?;
        let tokenizer = Tokenizer::from_file(folder.path())?.with_special(self.run.data.special.clone())?;
        let tokenizer = Arc::new(self.run.task.prepare(tokenizer)?);
        self.run.task.require_fit(&config, &tokenizer, self.run.asked_rows(&tokenizer))?;
        (self.say)(&format!("loading {}", folder.path().display()));
        let model = folder.load::<M>(&config, &device)?.model;
        let inference =
            self.run.inference::<M>(&config, Some(folder), &tokenizer, &device, self.decoding.clone())?;
        let (mut predicted, mut waiting) = (Predicted::default(), Vec::new());
        let most = self.limit.unwrap_or(usize::MAX);
        let reader = open(&self.data, self.run.data.format.as_ref())?;
        let skipped = Skipped::default();
        'parts: for part in 0..reader.parts() {
            for record in self.run.data.malformed.apply(reader.open(part)?, &skipped) {
                if predicted.answers + waiting.len() >= most {
                    break 'parts;
                }
                waiting.push(self.run.task.asked(&record?, &tokenizer)?);
                if waiting.len() == TOGETHER {
                    self.answer(&model, &inference, &mut waiting, &mut predicted)?;
                }
            }
        }
        self.answer(&model, &inference, &mut waiting, &mut predicted)?;
        Ok(predicted)
    }
}

impl Predicting<'_> {
    fn answer<M: Answers>(
        &mut self,
        model: &M,
        inference: &Inference,
        waiting: &mut Vec<(Question, Option<Value>)>,
        predicted: &mut Predicted,
    ) -> Result<(), RunError> {
        let (questions, expected): (Vec<_>, Vec<_>) = waiting.drain(..).unzip();
        let inference = Inference { first: predicted.answers as u64, ..inference.clone() };
        let answers = model.answers(&questions, &inference)?;
        for ((question, expected), answer) in questions.iter().zip(expected).zip(answers) {
            predicted.answers += 1;
            if let Some(expected) = &expected {
                predicted.expected += 1;
                predicted.right += usize::from(answer.get("predicted") == Some(expected));
            }
            let line = line(question, expected, answer);
            let written = writeln!(self.output, "{}", Value::Object(line));
            written.map_err(|error| TrainError::file("the predictions", "writing", error))?;
        }
        Ok(())
    }
}

fn line(question: &Question, expected: Option<Value>, answer: Answer) -> Map<String, Value> {
    let name = if matches!(question, Question::Words(_)) { "tokens" } else { "text" };
    let mut line = Map::from_iter([(name.to_string(), json!(question))]);
    line.extend(answer);
    line.extend(expected.map(|expected| ("expected".to_string(), expected)));
    line
}
