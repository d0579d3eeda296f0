//! A folder as a commit on the Hub.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::HubError;
use super::api::Hub;
use super::cache::sha256;
use super::large_file::LargeFile;
use super::reference::{MAIN, Reference};

/// How many bytes of a file tell the Hub what it is.
const SAMPLE: u64 = 512;

/// The request that finds how each file is pushed.
const ASKING: &str = "asking how files are pushed";

/// A push of a folder.
#[derive(Clone, Debug)]
pub(crate) struct Push {
    /// The folder, whose files are pushed without those of its subfolders.
    pub folder: PathBuf,
    /// `org/name`.
    pub repository: String,
    /// The message of the commit.
    pub message: String,
    /// Whether the repository is private, if it does not exist yet.
    pub is_private: bool,
}

/// A file to push.
struct Pushed {
    name: String,
    path: PathBuf,
    size: u64,
}

impl Push {
    /// Creates the repository and the branch unless they exist, and commits the files of the folder to a branch. Returns the address of
    /// the commit, or of the repository if nothing changed.
    ///
    /// # Errors
    ///
    /// There is no token, a file cannot be read, or the Hub refuses or does not answer.
    pub fn push(&self, say: &dyn Fn(&str)) -> Result<String, HubError> {
        let Reference { repository, revision, .. } = Reference::named(&self.repository)?;
        let files = files(&self.folder)?;
        let hub = Hub::open()?;
        hub.create(&repository, self.is_private)?;
        if revision != MAIN {
            hub.create_branch(&repository, &revision)?;
        }
        let ask = format!("/api/models/{repository}/preupload/{revision}");
        let described = files.iter().map(Pushed::described).collect::<Result<Vec<_>, _>>()?;
        let answer = hub.post(ASKING, &ask, &json!({ "files": described }))?;
        let header = json!({ "key": "header", "value": { "summary": self.message, "description": "" } });
        let mut lines = vec![header];
        for file in &files {
            lines.push(match file.is_large(&answer)? {
                false => {
                    let content = fs::read(&file.path).map_err(|error| file.failed(error))?;
                    let content = STANDARD.encode(content);
                    json!({ "key": "file", "value": { "path": file.name, "content": content, "encoding": "base64" } })
                }
                true => {
                    let oid = sha256(&file.path).map_err(|error| file.failed(error))?;
                    let large = LargeFile { path: &file.path, oid, size: file.size };
                    say(&format!("pushing {}, {:.1} MB", file.name, file.size as f64 / 1e6));
                    large.upload(&hub, &repository, &revision)?;
                    json!({ "key": "lfsFile", "value": { "path": file.name, "algo": "sha256", "oid": large.oid, "size": file.size } })
                }
            });
        }
        let body: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let url = format!("{}/api/models/{repository}/commit/{revision}", hub.endpoint());
        let commit = hub.agent().post(&url).header("Content-Type", "application/x-ndjson");
        let commit = commit.header("Authorization", hub.authorization());
        let committed = hub.read("committing", commit.send(body))?;
        // Of a commit that changes nothing, the Hub says that it succeeded.
        match committed["commitUrl"].as_str() {
            Some(address) => Ok(address.into()),
            None if committed["success"] == true => Ok(format!("{}/{repository}", hub.endpoint())),
            None => Err(HubError::Unexpected {
                url,
                expected: "the address of the commit in `commitUrl`".into(),
                found: committed.to_string().chars().take(300).collect(),
            }),
        }
    }
}

/// Finds the files of a folder, in the order of their names.
fn files(folder: &Path) -> Result<Vec<Pushed>, HubError> {
    let failed = |error: std::io::Error| HubError::Other {
        doing: format!("reading {}", folder.display()),
        reason: error.to_string(),
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_string();
        if path.is_file() && !name.starts_with('.') {
            let size = path.metadata().map_err(failed)?.len();
            files.push(Pushed { name, path, size });
        }
    }
    files.sort_by(|one, other| one.name.cmp(&other.name));
    let has = |name: &str| files.iter().any(|file| file.name == name);
    match has("config.json") && files.iter().any(|file| file.name.ends_with(".safetensors")) {
        true => Ok(files),
        false => Err(HubError::NoModel { folder: folder.into() }),
    }
}

impl Pushed {
    /// Describes the file for the Hub, which decides where it is stored.
    fn described(&self) -> Result<Value, HubError> {
        let mut sample = Vec::new();
        let file = File::open(&self.path).map_err(|error| self.failed(error))?;
        file.take(SAMPLE).read_to_end(&mut sample).map_err(|error| self.failed(error))?;
        Ok(json!({ "path": self.name, "size": self.size, "sample": STANDARD.encode(sample) }))
    }

    /// Whether the Hub's answer about the files says that this one goes to the storage of large files.
    fn is_large(&self, answer: &Value) -> Result<bool, HubError> {
        let mut files = answer["files"].as_array().into_iter().flatten();
        let own = files.find(|file| file["path"] == self.name);
        match own.and_then(|file| file["uploadMode"].as_str()) {
            Some("lfs") => Ok(true),
            Some("regular") => Ok(false),
            _ => Err(HubError::Other {
                doing: ASKING.into(),
                reason: format!("the Hub does not say how to push {}", self.name),
            }),
        }
    }

    fn failed(&self, error: std::io::Error) -> HubError {
        HubError::Other { doing: format!("reading {}", self.path.display()), reason: error.to_string() }
    }
}
