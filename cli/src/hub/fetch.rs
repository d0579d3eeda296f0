//! Files of a repository, downloaded into the Hub's cache.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use glob::{MatchOptions, Pattern};
use hf_hub::api::Progress;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Repo, RepoType};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::cache::Environment;
use super::reference::Reference;
use super::{HubError, Wanted};

/// How often a download that breaks off goes on.
const RETRIES: usize = 5;
/// How long to wait for a file that another process downloads.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);
/// The time between two lines of a download.
const TOLD: Duration = Duration::from_secs(5);

const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// A repository at one commit, and its files.
struct Repository<'a> {
    environment: &'a Environment,
    reference: &'a Reference,
    is_data: bool,
    /// The repository on the Hub; `None` without network.
    hub: Option<ApiRepo>,
    /// The folder of the commit in the cache.
    snapshot: PathBuf,
    /// All of its files, those of the cache without network.
    files: Vec<String>,
}

/// Downloads what is wanted of a repository, and returns its folder.
pub(super) fn fetch_folder(
    reference: &Reference,
    wanted: Wanted,
    say: &dyn Fn(&str),
) -> Result<PathBuf, HubError> {
    let environment = Environment::read();
    let repository = Repository::open(&environment, reference, false, say)?;
    let of_tokenizer = || {
        let is_of = |file: &&String| is_of_tokenizer(file) || *file == "config.json";
        repository.files.iter().filter(is_of).cloned().collect::<Vec<_>>()
    };
    let of_generation = || repository.files.iter().filter(|file| *file == "generation_config.json").cloned();
    let files: Vec<String> = match wanted {
        Wanted::Beside => of_tokenizer().into_iter().chain(of_generation()).collect(),
        Wanted::Tokenizer => {
            repository.require("tokenizer.json")?;
            of_tokenizer()
        }
        Wanted::Adapter => {
            repository.require("adapter_config.json")?;
            repository.require("adapter_model.safetensors")?;
            vec!["adapter_config.json".into(), "adapter_model.safetensors".into()]
        }
        Wanted::Model => {
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
    let environment = Environment::read();
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
            Some(Err(error @ HubError::Unreachable { .. })) => {
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
        let fail = |error| failed(environment, reference, is_data, error);
        let api = ApiBuilder::from_cache(environment.cache.clone())
            .with_endpoint(environment.endpoint.clone())
            .with_token(environment.token.clone())
            .with_retries(RETRIES)
            .with_progress(false)
            .with_user_agent("firebrick", env!("CARGO_PKG_VERSION"));
        let api: Api = api.build().map_err(fail)?;
        let named = repo(reference, is_data, &reference.revision);
        let info = api.repo(named.clone()).info().map_err(fail)?;
        // What the cache has of the branch is found without network too.
        let cache = environment.cache.repo(named);
        cache.create_ref(&info.sha).map_err(|error| fail(error.into()))?;
        Ok(Self {
            environment,
            reference,
            is_data,
            hub: Some(api.repo(repo(reference, is_data, &info.sha))),
            snapshot: cache.pointer_path(&info.sha),
            files: info.siblings.into_iter().map(|file| file.rfilename).collect(),
        })
    }

    /// Finds the revision in the cache: a branch or a tag that was asked for before, or a commit.
    fn cached(environment: &'a Environment, reference: &'a Reference, is_data: bool) -> Option<Self> {
        let named = repo(reference, is_data, &reference.revision);
        let cache = environment.cache.repo(named.clone());
        let known = environment.cache.path().join(named.folder_name()).join("refs").join(&reference.revision);
        let commit = fs::read_to_string(known).unwrap_or_else(|_| reference.revision.clone());
        let snapshot = cache.pointer_path(commit.trim());
        let mut files = Vec::new();
        list(&snapshot, &snapshot, &mut files).ok()?;
        (!files.is_empty()).then_some(Self { environment, reference, is_data, hub: None, snapshot, files })
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

    /// Returns the path of a file, which is downloaded unless the cache has it. A download that another process has begun,
    /// or that broke off, goes on where it ended.
    fn get(&self, file: &str, say: &dyn Fn(&str)) -> Result<PathBuf, HubError> {
        let path = self.snapshot.join(file);
        if path.exists() {
            return Ok(path);
        }
        let Some(hub) = &self.hub else {
            let missing = format!("{file} of {}", self.reference.repository);
            return Err(offline(self.environment, self.reference, self.is_data, &missing));
        };
        let (began, mut was_told) = (Instant::now(), false);
        let path = loop {
            match hub.download_with_progress(file, Told::of(file, say)) {
                Ok(path) => break path,
                Err(ApiError::LockAcquisition(_)) if began.elapsed() < PATIENCE => {
                    if !was_told {
                        say(&format!("another process downloads {file}: waiting for it"));
                        was_told = true;
                    }
                    sleep(Duration::from_secs(1));
                }
                Err(error) => return Err(failed(self.environment, self.reference, self.is_data, error)),
            }
        };
        self.require_whole(file, &path)?;
        Ok(path)
    }

    /// Checks a large file, whose name in the cache is its SHA-256, and removes it if it is damaged.
    fn require_whole(&self, file: &str, path: &Path) -> Result<(), HubError> {
        let blob = fs::canonicalize(path).map_err(|error| other(file, error))?;
        let name = blob.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.len() != 64 || !name.bytes().all(|letter| letter.is_ascii_hexdigit()) {
            return Ok(());
        }
        let found = sha256(&blob).map_err(|error| other(file, error))?;
        if found == name {
            return Ok(());
        }
        let expected = name.to_string();
        let _ = fs::remove_file(path).and(fs::remove_file(&blob));
        Err(HubError::Damaged { file: file.into(), expected, found })
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

/// Tells how far a download is, every few seconds.
struct Told<'a> {
    file: &'a str,
    say: &'a dyn Fn(&str),
    size: usize,
    done: usize,
    told: Instant,
}

impl<'a> Told<'a> {
    fn of(file: &'a str, say: &'a dyn Fn(&str)) -> Self {
        Self { file, say, size: 0, done: 0, told: Instant::now() }
    }
}

impl Progress for Told<'_> {
    /// Called again where a download goes on.
    fn init(&mut self, size: usize, _: &str) {
        if self.size == 0 {
            (self.say)(&format!("downloading {}, {:.1} MB", self.file, size as f64 / 1e6));
        }
        (self.size, self.done) = (size.max(1), 0);
    }

    fn update(&mut self, size: usize) {
        self.done += size;
        if self.told.elapsed() >= TOLD {
            self.told = Instant::now();
            let share = 100.0 * self.done as f64 / self.size as f64;
            (self.say)(&format!("downloading {}, {share:.0}%", self.file));
        }
    }

    fn finish(&mut self) {}
}

fn repo(reference: &Reference, is_data: bool, revision: &str) -> Repo {
    let kind = if is_data { RepoType::Dataset } else { RepoType::Model };
    Repo::with_revision(reference.repository.clone(), kind, revision.into())
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

/// Returns the SHA-256 of a file, in hexadecimal digits.
pub(super) fn sha256(path: &Path) -> io::Result<String> {
    let (mut file, mut sum, mut chunk) = (File::open(path)?, Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut chunk)? {
            0 => break,
            count => sum.update(&chunk[..count]),
        }
    }
    Ok(sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn offline(environment: &Environment, reference: &Reference, is_data: bool, missing: &str) -> HubError {
    HubError::Offline {
        missing: missing.into(),
        cache: environment.cache.path().clone(),
        instead: reference.by_hand(is_data),
    }
}

fn other(doing: &str, error: impl ToString) -> HubError {
    HubError::Other { doing: doing.into(), reason: error.to_string() }
}

/// Says what an error of the Hub means.
fn failed(environment: &Environment, reference: &Reference, is_data: bool, error: ApiError) -> HubError {
    let Reference { repository, revision, .. } = reference.clone();
    let (endpoint, has_token) = (environment.endpoint.clone(), environment.token.is_some());
    let reason = error.to_string();
    let cause = match error {
        ApiError::TooManyRetries(error) => *error,
        error => error,
    };
    match cause {
        ApiError::RequestError(error) => match *error {
            // To those who may not see a repository, the Hub says that they must log in.
            ureq::Error::StatusCode(401 | 404) => {
                HubError::NotFound { repository, revision, endpoint, has_token }
            }
            ureq::Error::StatusCode(403) => HubError::Denied { repository, endpoint, has_token },
            ureq::Error::StatusCode(_) => other(&format!("asking {endpoint} for {repository}"), reason),
            _ => HubError::Unreachable { endpoint, reason, instead: reference.by_hand(is_data) },
        },
        _ => other(&format!("getting {repository} from {endpoint}"), reason),
    }
}
