//! Drafts a run file for the data and the model that it is given.
//!
//! ```text
//! mod.rs    what the file has
//! data.rs   recognises a data set by its files and its first records
//! trial.rs  trains what is suggested for a step, before it is written
//! text.rs   the text of the file
//! ```

mod data;
mod text;
mod trial;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use firebrick_datasets::Tokenizer;
use firebrick_models::pretrained::{CLASSIFIER, Folder};

use crate::console::tell;
use crate::hub::{FileSet, local_folder, local_paths};
use crate::run::{self, Registries};
use crate::{Examples, InitError, ModelConfig, Run, RunError, TaskConfig};

use data::Seen;
use text::Draft;
use trial::Trial;

/// A drafted run file.
#[derive(Debug)]
pub(crate) struct Drafted {
    /// Its text.
    pub text: String,
    /// What was recognised, line by line.
    pub found: Vec<String>,
}

/// What a run file is drafted for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftRequest<'a> {
    /// The name of the task.
    pub task: &'a str,
    /// The data; a placeholder if there is none.
    pub data: Option<&'a Path>,
    /// The validation data; what lies beside the data if there is none.
    pub valid: Option<&'a Path>,
    /// The Hugging Face folder of the model; a small fresh model if there is none.
    pub model: Option<&'a Path>,
}

impl DraftRequest<'_> {
    /// Drafts the run file.
    ///
    /// # Errors
    ///
    /// The task is unknown, the data or the model cannot be read, or they do not fit the task.
    pub fn draft(&self, registries: &Arc<Registries>) -> Result<Drafted, RunError> {
        let task = task(self.task, registries)?;
        let mut seen = match self.data {
            Some(data) => seen(data, &task)?,
            None => Seen { path: "train.jsonl".into(), ..Seen::default() },
        };
        seen.valid = self.valid.map(Path::to_path_buf).or(seen.valid);
        if let Some(valid) = &seen.valid {
            seen.check_valid(&on_this_machine(valid)?)?;
        }
        let (path, valid, format) = (seen.path.clone(), seen.valid.clone(), seen.format.clone());
        let reads = seen.reads.clone();
        let (mut examples, mut found) = match self.data {
            Some(_) => seen.split(),
            None => (Examples::default(), vec!["no --data: `data.path` is a placeholder".into()]),
        };
        let mut parameters = None;
        if let Some(model) = self.model {
            let local = local_folder(model, FileSet::Model, &tell)?;
            let folder = Folder::open(&*local)?;
            let config = registries.families.model_in(&task, &folder)?.config_in(&folder)?;
            parameters = Some(run::parameters(&config));
            let tokenizer = Tokenizer::from_file(&*local)?;
            let of_tokenizer = tokenizer.model_max_length();
            examples.most_tokens = config.positions().into_iter().chain(of_tokenizer).min();
            examples.labels = config.label_names().filter(|_| config.has_head(&folder, CLASSIFIER));
            examples.tokenizer = Some(tokenizer);
            let family = folder.model_type().unwrap_or("unknown");
            found.push(format!("{}: a model of the family {family}, with its tokenizer", model.display()));
        }
        let suggestion =
            task.suggest(&examples).map_err(|reason| InitError::Data { path: path.clone(), reason })?;
        found.extend(suggestion.found.iter().cloned());
        let fresh = match self.model {
            Some(_) => String::new(),
            None => fresh(&task, registries)?,
        };
        let text = Draft {
            task: task.name(),
            path: &path,
            is_placeholder: self.data.is_none(),
            valid: valid.as_deref(),
            format: format.as_deref(),
            bytes: examples.bytes,
            folder: self.model,
            fresh: fresh.clone(),
            suggestion: &suggestion,
        }
        .text();
        // What is printed can be read, and trains.
        Run::parse_with(registries, "the drafted run file", &text, &[""; 0])?;
        if let (Some(data), Some(format)) = (self.data, reads) {
            let local = on_this_machine(data)?;
            let is_here = |path: &Path| on_this_machine(path).is_ok_and(|local| local == path);
            let trial = Trial {
                text: &text,
                data: &local,
                format: &format,
                bytes: examples.bytes,
                is_here: is_here(data) && valid.as_deref().is_none_or(is_here),
                parameters,
                fresh: &fresh,
            };
            let untried = trial
                .run(registries)
                .map_err(|error| InitError::Trial { path, reason: error.to_string() })?;
            found.extend(untried);
        }
        Ok(Drafted { text, found })
    }
}

/// Returns the task of a name, with the defaults of its settings.
fn task(name: &str, registries: &Registries) -> Result<TaskConfig, InitError> {
    let known = registries.tasks.names();
    let Some(&name) = known.iter().find(|known| **known == name) else {
        let distance =
            |known: &&&str| strsim::damerau_levenshtein(&known.to_lowercase(), &name.to_lowercase());
        let nearest = known.iter().min_by_key(distance).copied();
        let nearest =
            nearest.filter(|near| strsim::jaro_winkler(&near.to_lowercase(), &name.to_lowercase()) > 0.8);
        return Err(InitError::Task { name: name.into(), nearest, known: known.to_vec() });
    };
    registries.reading(|| TaskConfig::with_defaults(name)).ok_or(InitError::NoDefaults(name))
}

/// Recognises data, which may be a file on the Hub.
fn seen(data: &Path, task: &TaskConfig) -> Result<Seen, RunError> {
    let local = on_this_machine(data)?;
    let seen = Seen::at(&local, task.predicts_in_parts())?;
    Ok(match local == data {
        true => seen,
        // The Hub's cache is not what the run file names, and what lies in it is not all that the data set has.
        false => Seen { path: data.into(), valid: None, ..seen },
    })
}

/// Returns the path on this machine of data that may be on the Hub: its first file, if a pattern names several.
fn on_this_machine(data: &Path) -> Result<PathBuf, RunError> {
    let paths = local_paths(&[data.into()], &tell)?;
    Ok(paths.into_iter().next().unwrap_or_else(|| data.into()))
}

/// Returns the entry of a small fresh model that learns the task.
fn fresh(task: &TaskConfig, registries: &Registries) -> Result<String, InitError> {
    let families = registries.families.fresh_for(task);
    let entries = families
        .into_iter()
        .flat_map(|name| ["layers: 4, heads: 4, width: 128", ""].map(|shape| format!("{name}({shape})")));
    let is_entry = |entry: &String| registries.reading(|| ModelConfig::parse(entry)).is_some();
    entries.into_iter().find(is_entry).ok_or(InitError::NoModel(task.name()))
}
