//! Predictions of a trained model for the records of a file.

use std::io::{self, BufRead, Write};
use std::iter;
use std::path::Path;
use std::sync::Arc;

use firebrick_datasets::{
    DataError, JsonlReader, ReadError, Reader, Record, RecordPlace, Skipped, Tokenizer, Truncated, counted,
};
use serde_json::{Map, Value, json};

use super::TrainedRun;
use super::incoming::{Incoming, NoLine, TOGETHER};
use crate::run::local_data;
use crate::{Run, RunError};
use firebrick::observe::plain_text::plain_json;
use firebrick::{AnyModel, TrainError};
use firebrick_models::AnyConfig;
use firebrick_models::decoding::Decoding;
use firebrick_models::inference::{Answer, Inference, Question};
use firebrick_models::pretrained::Folder;
use firebrick_tasks::{Paths, STANDARD_INPUT, tell_skipped};

/// What errors call the output.
pub(crate) const PREDICTIONS: &str = "the predictions";

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
    /// A missing device, unreadable records, or an output that cannot be written. If its reader is gone, the error is
    /// [`RunError::Unread`].
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
        let asked = Asked::Files(local_data(&data, &say)?);
        let predicting = Predicting { run: &self.run, asked, limit, decoding, output, say: &say };
        predicting.answered_by(&self.weights()?)
    }

    /// Like [`predict`](Self::predict), but answers lines as they come: each is a record in JSON, or a text. Blank lines
    /// are skipped. A line may have 1 MiB. The output is flushed whenever there is nothing more to answer. An error comes
    /// after the answers to the lines before it.
    ///
    /// # Errors
    ///
    /// Those of [`predict`](Self::predict).
    pub fn predict_lines(
        &self,
        lines: impl BufRead + Send + 'static,
        limit: Option<usize>,
        decoding: &Decoding,
        output: &mut dyn Write,
        say: impl Fn(&str),
    ) -> Result<Predicted, RunError> {
        let asked = Asked::Lines(Box::new(lines));
        let predicting = Predicting { run: &self.run, asked, limit, decoding, output, say: &say };
        predicting.answered_by(&self.weights()?)
    }
}

/// A model, and what it needs to answer.
type Answering<'a> = (&'a AnyConfig, &'a AnyModel, &'a Inference, &'a Tokenizer);

/// Where the records are.
enum Asked {
    Files(Paths),
    Lines(Box<dyn BufRead + Send>),
}

/// Predictions to be made.
struct Predicting<'a> {
    run: &'a Run,
    asked: Asked,
    limit: Option<usize>,
    decoding: &'a Decoding,
    output: &'a mut dyn Write,
    say: &'a dyn Fn(&str),
}

impl Predicting<'_> {
    fn answered_by(mut self, folder: &Folder) -> Result<Predicted, RunError> {
        let (device, _) = self.run.find_device(self.say)?;
        let config = self.run.model_in(folder)?.config_in(folder)?;
        let tokenizer = Tokenizer::from_file(folder.path())?.with_special(self.run.data.special.clone())?;
        let tokenizer = Arc::new(self.run.task.prepare(tokenizer)?);
        self.run.task.require_fit(&config, &tokenizer, self.run.asked_rows(&tokenizer))?;
        (self.say)(&format!("loading {}", folder.path().display()));
        let model = config.load(folder, &device)?.model;
        let inference =
            self.run.inference(&config, Some(folder), &tokenizer, &device, self.decoding.clone())?;
        let truncated = Truncated::default();
        // A line may be long, and the model reads its beginning only.
        let encoder = inference.encoder.clone().counting(truncated.clone()).stopping(true);
        let inference = Inference { encoder, ..inference };
        let predicted = match std::mem::replace(&mut self.asked, Asked::Files(Paths::Several(Vec::new()))) {
            Asked::Files(paths) => self.answer_files(&paths, (&config, &model, &inference, &tokenizer)),
            Asked::Lines(lines) => self.answer_lines(lines, (&config, &model, &inference, &tokenizer)),
        };
        self.tell_truncated(&truncated);
        predicted
    }
}

impl Predicting<'_> {
    /// Answers the records of files. What comes before a malformed record is answered before its error is returned.
    fn answer_files(
        &mut self,
        paths: &Paths,
        (config, model, inference, tokenizer): Answering<'_>,
    ) -> Result<Predicted, RunError> {
        let (mut predicted, mut waiting) = (Predicted::default(), Vec::new());
        let most = self.limit.unwrap_or(usize::MAX);
        let skipped = Skipped::default();
        let reader = paths.open(self.run.data.format.as_ref())?;
        let mut failed = None;
        for asked in asked_by_records(self.run, &*reader, tokenizer, &skipped) {
            if predicted.answers + waiting.len() >= most {
                break;
            }
            match asked {
                Ok(asked) => waiting.push(asked),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
            if waiting.len() == TOGETHER {
                self.answer((config, model), inference, &mut waiting, &mut predicted)?;
            }
        }
        self.answer((config, model), inference, &mut waiting, &mut predicted)?;
        tell_skipped(&skipped, self.say);
        failed.map_or(Ok(predicted), |error| Err(error.into()))
    }

    /// Answers what has been read so far, and then waits for more. What comes before a malformed line is answered before
    /// its error is returned.
    fn answer_lines(
        &mut self,
        lines: Box<dyn BufRead + Send>,
        (config, model, inference, tokenizer): Answering<'_>,
    ) -> Result<Predicted, RunError> {
        let skipped = Skipped::default();
        let (mut predicted, mut waiting) = (Predicted::default(), Vec::new());
        let most = self.limit.unwrap_or(usize::MAX);
        let incoming = Incoming::of(lines).map_err(not_read)?;
        while predicted.answers < most {
            let Some(lines) = incoming.next(TOGETHER.min(most - predicted.answers)) else { break };
            let mut failed = None;
            for (line, text) in lines {
                match self.asked_by_line(line, text, tokenizer, &skipped) {
                    Ok(asked) => waiting.extend(asked),
                    Err(error) => {
                        failed = Some(error);
                        break;
                    }
                }
            }
            self.answer((config, model), inference, &mut waiting, &mut predicted)?;
            self.output.flush().map_err(|error| RunError::output(PREDICTIONS, error))?;
            if let Some(error) = failed {
                tell_skipped(&skipped, self.say);
                return Err(error);
            }
        }
        tell_skipped(&skipped, self.say);
        Ok(predicted)
    }

    /// Returns what a line of standard input asks; `None` if it is blank, or malformed and skipped.
    fn asked_by_line(
        &self,
        line: u64,
        text: Result<String, NoLine>,
        tokenizer: &Tokenizer,
        skipped: &Skipped,
    ) -> Result<Option<(Question, Option<Value>)>, RunError> {
        let place = RecordPlace { file: Path::new(STANDARD_INPUT).into(), line };
        let asked = match text {
            Ok(text) if text.trim().is_empty() => return Ok(None),
            Ok(text) => {
                record(self.run, &text, place).and_then(|record| self.run.task.asked(&record, tokenizer))
            }
            Err(NoLine::Malformed { expected, found }) => {
                Err(ReadError::Record { place, field: None, expected, found: found.into() }.into())
            }
            Err(NoLine::Io(error)) => return Err(not_read(error)),
        };
        Ok(self.run.data.malformed.keep(asked, skipped)?)
    }

    /// Says how many inputs were cut to the maximum length.
    fn tell_truncated(&self, truncated: &Truncated) {
        let texts = truncated.texts();
        if texts > 0 {
            let inputs = counted(texts, "input");
            (self.say)(&format!("cut off at `data.max_length`: {inputs}, whose rest the model did not read"));
        }
    }

    fn answer(
        &mut self,
        (config, model): (&AnyConfig, &AnyModel),
        inference: &Inference,
        waiting: &mut Vec<(Question, Option<Value>)>,
        predicted: &mut Predicted,
    ) -> Result<(), RunError> {
        let (questions, expected): (Vec<_>, Vec<_>) = waiting.drain(..).unzip();
        let inference = Inference { first: predicted.answers as u64, ..inference.clone() };
        let answers = config.answers(model, &questions, &inference)?;
        for ((question, expected), answer) in questions.iter().zip(expected).zip(answers) {
            predicted.answers += 1;
            if let Some(expected) = &expected {
                predicted.expected += 1;
                predicted.right += usize::from(is_right(&answer, expected));
            }
            let line = Value::Object(line(question, expected, answer)).to_string();
            let written = writeln!(self.output, "{}", plain_json(&line));
            written.map_err(|error| RunError::output(PREDICTIONS, error))?;
        }
        Ok(())
    }
}

/// Returns the error for standard input that cannot be read.
fn not_read(error: io::Error) -> RunError {
    TrainError::file(STANDARD_INPUT, "reading", error).into()
}

/// Returns what each record of a reader asks, without malformed ones that are skipped.
fn asked_by_records<'a>(
    run: &'a Run,
    reader: &'a dyn Reader,
    tokenizer: &'a Tokenizer,
    skipped: &'a Skipped,
) -> impl Iterator<Item = Result<(Question, Option<Value>), DataError>> + 'a {
    let records = (0..reader.parts())
        .flat_map(|part| reader.open(part).unwrap_or_else(|error| Box::new(iter::once(Err(error)))));
    records.filter_map(move |record| {
        let asked = record.and_then(|record| run.task.asked(&record, tokenizer));
        run.data.malformed.keep(asked, skipped).transpose()
    })
}

/// Returns the record of a line: a JSON object, or a text.
fn record(run: &Run, line: &str, place: RecordPlace) -> Result<Record, DataError> {
    match line.trim_start().starts_with('{') {
        true => JsonlReader::record(line, place),
        false => {
            let fields = run.task.typed(line).into_iter().map(|(name, value)| (name.into(), value));
            Ok(Record::new(place, fields.collect()))
        }
    }
}

/// Returns whether an answer is the expected one. A text may begin with the space between a conversation and its answer.
fn is_right(answer: &Answer, expected: &Value) -> bool {
    let predicted = answer.get("predicted");
    let trimmed = predicted.and_then(Value::as_str).map(str::trim);
    predicted == Some(expected) || trimmed.is_some_and(|trimmed| expected.as_str() == Some(trimmed))
}

fn line(question: &Question, expected: Option<Value>, answer: Answer) -> Map<String, Value> {
    let name = if matches!(question, Question::Words(_)) { "tokens" } else { "text" };
    let mut line = Map::from_iter([(name.to_string(), json!(question))]);
    line.extend(answer);
    line.extend(expected.map(|expected| ("expected".to_string(), expected)));
    line
}
