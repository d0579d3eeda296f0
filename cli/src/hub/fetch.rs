//! Files of a repository, downloaded into the Hub's cache.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use glob::{MatchOptions, Pattern};
use serde_json::Value;

use super::cache::{Environment, is_plain_name, keep_ref};
use super::download::Source;
use super::reference::Reference;
use super::{FileSet, HubError};

const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// A repository at one commit, and its files.
struct Repository<'a> {
    environment: &'a Environment,
    reference: &'a Reference,
    is_data: bool,
    /// The repository on the Hub; `None` without network.
    hub: Option<Source<'a>>,
    commit: String,
    /// The folder of the commit in the cache.
    snapshot: PathBuf,
    /// All of its files, those of the cache without network.
    files: Vec<String>,
}

/// Downloads what is wanted of a repository, and returns its folder.
pub(super) fn fetch_folder(
    reference: &Reference,
    wanted: FileSet,
    say: &dyn Fn(&str),
) -> Result<PathBuf, HubError> {
    let environment = Environment::read()?;
    let repository = Repository::open(&environment, reference, false, say)?;
    let of_tokenizer = || {
        let is_of = |file: &&String| is_of_tokenizer(file) || *file == "config.json";
        repository.files.iter().filter(is_of).cloned().collect::<Vec<_>>()
    };
    let of_generation = || repository.files.iter().filter(|file| *file == "generation_config.json").cloned();
    let files: Vec<String> = match wanted {
        FileSet::Beside => of_tokenizer().into_iter().chain(of_generation()).collect(),
        FileSet::Tokenizer => {
            repository.require("tokenizer.json")?;
            of_tokenizer()
        }
        FileSet::Adapter => {
            repository.require("adapter_config.json")?;
            repository.require("adapter_model.safetensors")?;
            vec!["adapter_config.json".into(), "adapter_model.safetensors".into()]
        }
        FileSet::Model => {
            repository.require("config.json")?;
            let mut files = of_tokenizer();
            files.extend(of_generation());
            files.extend(repository.weights(say)?);
            files
        }
    };
    files.iter().try_for_each(|file| repository.get(file, say).map(drop))?;
    Ok(repository.snapshot)
}

/// Downloads the files of a data set that a reference names, and returns their paths.
pub(super) fn fetch_files(reference: &Reference, say: &dyn Fn(&str)) -> Result<Vec<PathBuf>, HubError> {
    let environment = Environment::read()?;
    let repository = Repository::open(&environment, reference, true, say)?;
    let Some(named) = &reference.file else {
        return Err(HubError::NoFile {
            repository: reference.repository.clone(),
            files: repository.listed(),
        });
    };
    let malformed = |_| HubError::Malformed { found: named.clone() };
    let pattern = Pattern::new(named).map_err(malformed)?;
    // As in paths of this machine, `*` does not reach into folders.
    let options = MatchOptions { require_literal_separator: true, ..MatchOptions::default() };
    let is_named = |file: &&String| *file == named || pattern.matches_with(file, options);
    let mut files: Vec<_> = repository.files.iter().filter(is_named).cloned().collect();
    files.sort();
    if files.is_empty() {
        return Err(repository.lacks(&format!("`{named}`")));
    }
    files.iter().map(|file| repository.get(file, say)).collect()
}

/// Whether a file belongs to a tokenizer.
fn is_of_tokenizer(file: &str) -> bool {
    let known = ["special_tokens_map.json", "added_tokens.json", "merges.txt", "spiece.model"];
    let is_at_root = !file.contains('/');
    let begins = ["tokenizer", "vocab", "chat_template"].iter().any(|name| file.starts_with(name));
    is_at_root && (begins || known.contains(&file))
}

impl<'a> Repository<'a> {
    /// Finds the commit of the revision: on the Hub, or in the cache if the Hub is not to be asked or does not answer.
    fn open(
        environment: &'a Environment,
        reference: &'a Reference,
        is_data: bool,
        say: &dyn Fn(&str),
    ) -> Result<Self, HubError> {
        let asked = match environment.is_offline {
            true => None,
            false => Some(Self::ask(environment, reference, is_data)),
        };
        match asked {
            Some(Err(error @ (HubError::Unreachable { .. } | HubError::Unexpected { .. }))) => {
                let cached = Self::cached(environment, reference, is_data).ok_or(error)?;
                let Reference { repository, revision, .. } = reference;
                say(&format!(
                    "the Hub does not answer: using {repository} at {revision} as it is in the cache"
                ));
                Ok(cached)
            }
            Some(found) => found,
            None => Self::cached(environment, reference, is_data)
                .ok_or_else(|| offline(environment, reference, is_data, &reference.repository)),
        }
    }

    fn ask(environment: &'a Environment, reference: &'a Reference, is_data: bool) -> Result<Self, HubError> {
        let hub = Source::new(environment, reference, is_data);
        let (commit, files) = hub.info()?;
        let folder = environment.folder(&reference.repository, is_data);
        keep_ref(&folder, &reference.revision, &commit);
        let snapshot = folder.join("snapshots").join(&commit);
        Ok(Self { environment, reference, is_data, hub: Some(hub), commit, snapshot, files })
    }

    /// Finds the revision in the cache: a branch or a tag that was asked for before, or a commit.
    fn cached(environment: &'a Environment, reference: &'a Reference, is_data: bool) -> Option<Self> {
        let folder = environment.folder(&reference.repository, is_data);
        let known = fs::read_to_string(folder.join("refs").join(&reference.revision)).unwrap_or_default();
        let known = known.trim();
        let commit = if is_plain_name(known) { known } else { &reference.revision }.to_string();
        let snapshot = folder.join("snapshots").join(&commit);
        let mut files = Vec::new();
        list(&snapshot, &snapshot, &mut files).ok()?;
        let found = Self { environment, reference, is_data, hub: None, commit, snapshot, files };
        (!found.files.is_empty()).then_some(found)
    }

    /// Returns the files of the weights. Those of several files are named by their index.
    fn weights(&self, say: &dyn Fn(&str)) -> Result<Vec<String>, HubError> {
        let has = |name: &str| self.files.iter().any(|file| file == name);
        if has(WEIGHTS) {
            return Ok(vec![WEIGHTS.into()]);
        }
        if !has(INDEX) {
            return Err(self.lacks("model.safetensors"));
        }
        let path = self.get(INDEX, say)?;
        let text = fs::read_to_string(&path).map_err(|error| other(INDEX, error))?;
        let index: Value = serde_json::from_str(&text).map_err(|error| other(INDEX, error))?;
        let parts = index["weight_map"].as_object().into_iter().flat_map(|map| map.values());
        let mut parts: Vec<String> = parts.filter_map(Value::as_str).map(String::from).collect();
        parts.sort();
        parts.dedup();
        parts.iter().try_for_each(|part| self.require(part))?;
        Ok([vec![INDEX.into()], parts].concat())
    }

    /// Returns the path of a file, which is downloaded unless the cache has it.
    fn get(&self, file: &str, say: &dyn Fn(&str)) -> Result<PathBuf, HubError> {
        let path = self.snapshot.join(file);
        if path.exists() {
            return Ok(path);
        }
        match &self.hub {
            Some(hub) => hub.download(&self.commit, file, say),
            None => {
                let missing = format!("{file} of {}", self.reference.repository);
                Err(offline(self.environment, self.reference, self.is_data, &missing))
            }
        }
    }

    fn require(&self, file: &str) -> Result<(), HubError> {
        match self.files.iter().any(|one| one == file) {
            true => Ok(()),
            false => Err(self.lacks(file)),
        }
    }

    fn lacks(&self, wanted: &str) -> HubError {
        let Reference { repository, revision, .. } = self.reference.clone();
        HubError::Lacks { repository, revision, wanted: wanted.into(), files: self.listed() }
    }

    /// Lists the first of the files.
    fn listed(&self) -> String {
        let first: Vec<&str> = self.files.iter().take(12).map(String::as_str).collect();
        let more = if self.files.len() > first.len() { ", and more" } else { "" };
        if first.is_empty() { "no file".into() } else { first.join(", ") + more }
    }
}

/// Lists the files below a folder, by their paths in it.
fn list(root: &Path, folder: &Path, files: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            list(root, &path, files)?;
        } else if let Some(name) = path.strip_prefix(root).ok().and_then(Path::to_str) {
            files.push(name.replace('\\', "/"));
        }
    }
    files.sort();
    Ok(())
}

fn offline(environment: &Environment, reference: &Reference, is_data: bool, missing: &str) -> HubError {
    HubError::Offline {
        missing: missing.into(),
        cache: environment.cache.clone(),
        instead: reference.by_hand(is_data),
    }
}

fn other(doing: &str, error: impl ToString) -> HubError {
    HubError::Other { doing: doing.into(), reason: error.to_string() }
}
