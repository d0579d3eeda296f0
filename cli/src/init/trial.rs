//! Trains what is suggested for a step, before it is written.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::train::Interrupter;
use firebrick::Show;
use firebrick_datasets::Format;
use serde_json::{Map, Value};
use tempfile::TempDir;

use crate::run::Registries;
use crate::{ModelConfig, Paths, Run, RunError, record_json};

/// The most bytes of data that are tried, which takes a moment. Of more data, the records at its beginning are.
const MOST: u64 = 1 << 20;

/// The most parameters of a folder's model that is trained here: with gradients and the optimizer's state, some 16 bytes
/// each.
const MOST_PARAMETERS: f64 = 2e7;

/// A model that is as small as its family allows takes the place of a fresh one.
const SMALLEST: &str = "layers: 1, heads: 1, width: 8";

/// A drafted run file, and what it is about.
pub(super) struct Trial<'a> {
    /// Its text.
    pub text: &'a str,
    /// The data on this machine, and how it is read. A pattern on the Hub names its first file.
    pub data: &'a Path,
    pub format: &'a Format,
    /// Bytes of the data.
    pub bytes: u64,
    /// Whether the data and the validation data are what the run file names, and not the Hub's copy.
    pub is_here: bool,
    /// The parameters of the folder's model, if the run starts from one.
    pub parameters: Option<f64>,
    /// The entry of a fresh model, if there is no folder.
    pub fresh: &'a str,
}

impl Trial<'_> {
    /// Trains the run for a step and evaluates it, with two samples in a batch, on the CPU, and without leaving a file.
    /// Returns what was not tried, for the user.
    ///
    /// # Errors
    ///
    /// Those of the run.
    pub fn run(&self, registries: &Arc<Registries>) -> Result<Vec<String>, RunError> {
        let drafted = Run::parse_with(registries, "the drafted run file", self.text, &[""; 0])?;
        let mut untried = Vec::new();
        if let Some(parameters) = self.parameters.filter(|parameters| *parameters > MOST_PARAMETERS) {
            untried.push(format!(
                "the model has {:.0} million parameters, so that no step was tried: `firebrick train run.ron --steps 1` \
                 tries one",
                parameters / 1e6
            ));
        }
        let Ok(folder) = TempDir::with_prefix("firebrick-init-") else {
            untried.push("no temporary folder can be created, so that the run file was not tried".into());
            return Ok(untried);
        };
        let mut set: Vec<String> = vec![
            "device=\"cpu\"".into(),
            "epochs=None".into(),
            "steps=1".into(),
            "schedule=Constant(lr: 1e-4)".into(),
            "batch=(micro: 2)".into(),
            "evaluate_samples=2".into(),
            "data.cache=false".into(),
            format!("output={:?}", folder.path().join("run").display().to_string()),
        ];
        let smaller = self.fresh.split_once('(').map(|(name, _)| format!("{name}({SMALLEST})"));
        if let Some(smaller) =
            smaller.filter(|entry| registries.reading(|| ModelConfig::parse(entry)).is_some())
        {
            set.push(format!("model={smaller}"));
        }
        let is_whole = self.is_here && self.bytes <= MOST && !self.is_packed()?;
        let valid = drafted.data.valid.as_ref().map(|valid| bytes_of(valid.as_slice()));
        if !is_whole || valid.is_some_and(|bytes| bytes > MOST) {
            set.extend(["data.valid=None".into(), "data.valid_fraction=0.0".into()]);
        }
        let beginning = folder.path().join(if drafted.data.is_plain_text(&one(self.data)) {
            "the_beginning_of_the_data.txt"
        } else {
            "the_beginning_of_the_data.jsonl"
        });
        if !is_whole {
            if !self.write_beginning(&beginning)? {
                untried.push("its first record is too long to try the run file on it".into());
                return Ok(untried);
            }
            set.extend([
                "data.format=None".into(),
                format!("data.path={:?}", beginning.display().to_string()),
            ]);
            if self.parameters.is_none() {
                // A larger vocabulary is learned from more text.
                set.push("data.tokenizer=Bpe(vocabulary: 1024)".into());
            }
        }
        let run = Run::parse_with(registries, "the drafted run file", self.text, &set)?;
        match untried.is_empty() {
            true => drop(run.launch(Show::Nothing, Interrupter::new())?),
            false => {
                let mut data = crate::DataRun::from(&run);
                data.data.cache = false;
                let loaded = data.load(|_| ())?;
                data.preview(&loaded, 1, 1)?;
            }
        }
        if !self.is_here {
            untried.push("of data on the Hub, only the beginning of its first file was tried".into());
        }
        Ok(untried)
    }

    /// Whether a file may unpack to more bytes than it has.
    fn is_packed(&self) -> Result<bool, RunError> {
        let ends = |path: &Path| path.extension().is_some_and(|ending| ending == "gz" || ending == "zst");
        Ok(self.format.files(&[self.data])?.iter().any(|path| ends(path)))
    }

    /// Writes the first records, as many as fit; returns false if the first one does not fit. Plain text stays plain, and
    /// other records are lines of JSON.
    fn write_beginning(&self, path: &Path) -> Result<bool, RunError> {
        let failed = |error| RunError::output("a temporary file", error);
        let mut file = BufWriter::new(File::create(path).map_err(failed)?);
        let is_plain_text = path.extension().is_some_and(|extension| extension == "txt");
        let reader = one(self.data).open(Some(self.format))?;
        let mut left = MOST as usize;
        'all: for part in 0..reader.parts() {
            for record in reader.open(part)? {
                let record = record?;
                let line = match is_plain_text {
                    true => record.text("text")?.to_owned(),
                    false => {
                        let fields = record.names().map(|name| (name.to_owned(), record_json(&record, name)));
                        let fields = fields.filter_map(|(name, value)| Some((name, value?)));
                        Value::Object(fields.collect::<Map<_, _>>()).to_string()
                    }
                };
                match left.checked_sub(line.len() + 1) {
                    Some(rest) => left = rest,
                    None => break 'all,
                }
                writeln!(file, "{line}").map_err(failed)?;
            }
        }
        file.flush().map_err(failed)?;
        Ok(left < MOST as usize)
    }
}

fn one(path: &Path) -> Paths {
    Paths::One(path.into())
}

fn bytes_of(paths: &[PathBuf]) -> u64 {
    paths.iter().map(|path| fs::metadata(path).map_or(0, |file| file.len())).sum()
}
