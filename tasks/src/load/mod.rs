//! Loads data as streams of batches.

mod kept;
mod labels;
mod prints;
mod samples;
mod task_data;
mod windows;

use std::cell::{Cell, RefCell};
use std::io;
use std::sync::Arc;

use firebrick_datasets::collators::Labels;
use firebrick_datasets::{
    Amount, Batch, DataError, Encoder, Fingerprint, Format, Padding, Reader, Record, SampleError, Skipped,
    SpecialNames, Tokenizer, Truncated, counted,
};

use crate::preview::{Legible, Names, Preview};
use crate::progress::progress;
use crate::token_cache::{Entry, TokenCache};
use crate::{Corpus, DataConfig, LoadError, Paths, Settled, TokenizerConfig};
use firebrick::Data;
use firebrick::observe::report::TruncatedTexts;
use kept::CachePlace;

pub(crate) use prints::{Part, Prints};
pub use task_data::TaskData;
pub(crate) use windows::Documents;

/// The data of a task, ready for training.
#[derive(Debug)]
pub struct Loaded {
    /// The tokenizer that made the tokens.
    pub tokenizer: Arc<Tokenizer>,
    /// The batches.
    pub data: TaskData,
    /// The names of a classifier's labels.
    pub labels: Option<Labels>,
    /// The malformed records that were skipped.
    pub skipped: Skipped,
    /// The most tokens that a row may have, padding included; `None` if there is no bound.
    pub longest_row: Option<usize>,
    /// The texts that were cut to the maximum length, by part of the data.
    pub truncated: Vec<TruncatedTexts>,
}

impl Loaded {
    /// Sets the names of the labels.
    pub fn labelled(self, labels: Labels) -> Self {
        Self { labels: Some(labels), ..self }
    }

    /// Looks at the micro-batches of the first epoch, 5,000 at most, and keeps the first `batches` of them, `rows` rows of
    /// each, to be drawn. An update takes `per_step` micro-batches.
    ///
    /// # Errors
    ///
    /// The first error of the data.
    pub fn preview(&self, per_step: usize, batches: usize, rows: usize) -> Result<Preview, DataError> {
        let names = Names { tokenizer: self.tokenizer.clone(), labels: self.labels.clone() };
        self.data.preview(per_step, &names, batches, rows)
    }

    /// Tells the user what was skipped and what was cut.
    pub(crate) fn tell(&self, say: impl Fn(&str)) {
        tell_skipped(&self.skipped, &say);
        tell_truncated(&self.truncated, say);
    }
}

/// Reports how many malformed records were skipped, with the reasons for the first ones, and how many records have
/// nothing to learn.
pub fn tell_skipped(skipped: &Skipped, say: impl Fn(&str)) {
    if skipped.count() > 0 {
        say(&format!("skipped {}, among them:", counted(skipped.count(), "malformed record")));
        skipped.messages().iter().for_each(|message| say(&format!("  {message}")));
    }
    if skipped.left_out() > 0 {
        say(&format!(
            "left out {} with nothing to learn: a text is empty or too short, or `data.max_length` cuts off what counts",
            counted(skipped.left_out(), "record")
        ));
    }
}

/// Returns the error of data without samples.
fn no_samples(place: String, skipped: &Skipped) -> DataError {
    let (skipped, left_out) = (skipped.count(), skipped.left_out());
    DataError::Sample(SampleError::NoSamples { place, skipped, left_out })
}

/// Reports how many texts were cut, and how many tokens they lost.
fn tell_truncated(truncated: &[TruncatedTexts], say: impl Fn(&str)) {
    for TruncatedTexts { data, texts, tokens } in truncated {
        let (tokens, texts) = (counted(*tokens, "token"), counted(*texts, "text"));
        say(&format!(
            "cut off at `data.max_length`: {tokens} of {texts} of the {data} data, which a larger one keeps"
        ));
    }
}

/// Files that can be read.
pub(crate) struct Opened<'a> {
    pub reader: Box<dyn Reader>,
    paths: &'a Paths,
    /// The format of the files, if the run names one. Otherwise their extensions say it.
    format: Option<&'a Format>,
}

/// A corpus, and its weight in a mix.
struct Weighted<T> {
    corpus: T,
    weight: f64,
}

/// What says which texts of a record are tokenized.
pub(crate) trait Texts: Sync {
    fn texts<'r>(&self, record: &'r Record) -> Result<Vec<&'r str>, DataError>;
}

/// A load of a run's data in progress, with what a [task](crate::Task) needs to make batches of it.
pub struct Loading<'a> {
    pub(crate) config: &'a DataConfig,
    pub(crate) settled: &'a Settled,
    pub(crate) seed: u64,
    pub(crate) micro_batch: Amount,
    pub(crate) global_batch: Amount,
    /// The number of samples of the validation data, its first ones; all if there is none.
    pub(crate) evaluate_samples: Option<usize>,
    pub(crate) texts: &'a dyn Texts,
    pub(crate) say: &'a dyn Fn(&str),
    pub(crate) skipped: Skipped,
    /// The texts that were cut so far.
    pub(crate) truncated: Truncated,
    /// Those of each part of the data that is loaded.
    pub(crate) cut_texts: RefCell<Vec<TruncatedTexts>>,
    pub(crate) prints: Prints,
    /// The tokens of earlier runs, if the run uses them.
    pub(crate) cache: Option<TokenCache>,
    /// Whether an entry could not be added.
    pub(crate) cache_failed: Cell<bool>,
}

impl Loading<'_> {
    /// Returns the loaded data of a task, without labels.
    pub fn loaded<B: Legible>(&self, tokenizer: Arc<Tokenizer>, batches: Data<B>) -> Loaded {
        let longest_row = self.config.longest_row(&tokenizer);
        Loaded {
            tokenizer,
            labels: None,
            skipped: self.skipped.clone(),
            longest_row,
            truncated: self.cut_texts.borrow().clone(),
            data: TaskData::new(batches),
        }
    }

    /// The settings of the data.
    pub fn config(&self) -> &DataConfig {
        self.config
    }

    /// Tells the user something about the data.
    pub fn say(&self, line: &str) {
        (self.say)(line);
    }

    /// The seed of the run.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the encoder of texts; `most` overrides the most tokens of a text.
    pub fn encoder(&self, tokenizer: &Arc<Tokenizer>, most: Option<usize>) -> Encoder {
        self.config.encoder(tokenizer, most).counting(self.truncated.clone())
    }

    /// Returns how rows are padded.
    pub fn padding(&self, tokenizer: &Tokenizer) -> Padding {
        self.config.padding(tokenizer)
    }

    /// Returns the token that the decoder starts with by the configuration of the model's folder.
    pub fn start_of_model(&self) -> Option<u32> {
        self.settled.start
    }

    /// Returns the tokenizer: read from its file, or built from the texts of the training records.
    ///
    /// # Errors
    ///
    /// The file or the records cannot be read.
    pub fn tokenizer(&self) -> Result<Arc<Tokenizer>, LoadError> {
        Ok(Arc::new(self.tokenizer_of(|| self.all_text())?))
    }

    fn cut<B: Batch>(&self, data: Data<B>) -> Data<B> {
        let data = data.workers(self.config.workers).known_by(self.prints.all());
        match self.micro_batch {
            Amount::Samples(samples) => data.micro_batch(samples),
            Amount::Tokens(tokens) => data.micro_tokens(tokens),
        }
    }

    /// Returns the tokenizer; calls `text` only if the tokenizer is built from the text.
    pub(crate) fn tokenizer_of(
        &self,
        text: impl FnOnce() -> Result<String, LoadError>,
    ) -> Result<Tokenizer, LoadError> {
        let special = self.config.special.clone();
        if let (Some(own), TokenizerConfig::Characters | TokenizerConfig::Bpe { .. }) =
            (&self.settled.tokenizer, &self.config.tokenizer)
        {
            (self.say)(&format!("reading the run's own tokenizer, {}", own.display()));
            return Ok(Tokenizer::from_file(own)?.with_only_special(special)?);
        }
        Ok(match &self.config.tokenizer {
            TokenizerConfig::Characters => Tokenizer::characters(&text()?)?.with_special(special)?,
            TokenizerConfig::Bpe { vocabulary } => self.learned(&text()?, *vocabulary, special)?,
            TokenizerConfig::File(path) => {
                let tokenizer = Tokenizer::from_file(path)?;
                tokenizer.warnings().iter().for_each(|warning| (self.say)(&format!("warning: {warning}")));
                tokenizer.with_new_tokens(&self.config.new_tokens)?.with_special(special)?
            }
        })
    }

    /// Opens the corpora to train on.
    fn corpora(&self) -> Result<Vec<Weighted<Opened<'_>>>, LoadError> {
        let config = self.config;
        self.prints.forget(Part::Train);
        if let Some(paths) = &config.path {
            let corpus = self.open(paths, config.format.as_ref())?;
            return Ok(vec![Weighted { corpus, weight: 1.0 }]);
        }
        let mut opened = Vec::new();
        for Corpus { path, weight, format } in &config.mix {
            let corpus = self.open(path, format.as_ref().or(config.format.as_ref()))?;
            opened.push(Weighted { corpus, weight: *weight });
        }
        Ok(opened)
    }

    /// Opens files.
    pub(crate) fn open<'b>(
        &self,
        paths: &'b Paths,
        format: Option<&'b Format>,
    ) -> Result<Opened<'b>, LoadError> {
        Ok(Opened { reader: paths.open(format)?, paths, format })
    }

    /// Visits all records of a reader, and counts skipped ones in `skipped`.
    pub(super) fn each_record(
        &self,
        reader: &dyn Reader,
        skipped: &Skipped,
        mut visit: impl FnMut(Record) -> Result<(), LoadError>,
    ) -> Result<(), LoadError> {
        for part in 0..reader.parts() {
            for record in self.config.malformed.apply(reader.open(part)?, skipped) {
                visit(record?)?;
            }
        }
        Ok(())
    }

    /// Returns the text of all training records, for building a vocabulary. Malformed records are counted later, when
    /// they are tokenized.
    pub(super) fn all_text(&self) -> Result<String, LoadError> {
        (self.say)("reading the text for the vocabulary");
        let uncounted = Skipped::default();
        let mut all = String::new();
        for Weighted { corpus, .. } in self.corpora()? {
            let reader = self.prints.reader(Part::Train, corpus.reader);
            self.each_record(&reader, &uncounted, |record| {
                for text in
                    self.config.malformed.keep(self.texts.texts(&record), &uncounted)?.unwrap_or_default()
                {
                    all += text;
                    all += "\n";
                }
                Ok(())
            })?;
        }
        if all.trim().is_empty() {
            let place = "the data to train on (`data.path` or `data.mix`)".into();
            return Err(no_samples(place, &uncounted).into());
        }
        Ok(all)
    }

    /// Reports the count every second.
    pub(super) fn progress(&self, what: &'static str) -> impl FnMut(usize) + '_ {
        progress(self.say, what)
    }

    /// Learns a vocabulary from a text, or reads the one that an earlier run learned from it.
    pub(super) fn learned(
        &self,
        text: &str,
        size: usize,
        special: SpecialNames,
    ) -> Result<Tokenizer, LoadError> {
        let place = self.cache.as_ref().and_then(|_| {
            let settings = ("vocabulary", size, &special, Fingerprint::of(text));
            CachePlace::of(format!("the vocabulary of {size} tokens that an earlier run learned"), &settings)
        });
        let read = |entry: &mut Entry| {
            let json = entry.frame()?.unwrap_or_default();
            let read = |json: &str| Tokenizer::from_json(json, special.clone()).map_err(io::Error::other);
            read(&String::from_utf8_lossy(&json))
        };
        if let Some(tokenizer) = place.as_ref().and_then(|place| self.found(place, read)) {
            return Ok(tokenizer);
        }
        let megabytes = text.len() as f64 / 1e6;
        self.say(&format!("learning a vocabulary of {size} tokens from {megabytes:.1} MB of text"));
        let tokenizer = Tokenizer::train_bpe_with(text, size, special.clone())?;
        if let (Some(place), Ok(json)) = (place, tokenizer.to_json()) {
            self.keep(&place, |writer| writer.frame(json.as_bytes()));
        }
        Ok(tokenizer)
    }
}
