//! The Hub's cache on this machine, and the settings of the environment, as Hugging Face's own tools have them; and the
//! sums that name large files on the Hub.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::HubError;

/// The address of the Hub, unless `HF_ENDPOINT` names another.
const ENDPOINT: &str = "https://huggingface.co";
/// How long the Hub may be silent, unless `HF_HUB_DOWNLOAD_TIMEOUT` says otherwise.
const SILENCE: Duration = Duration::from_secs(10);

/// How long to wait before the first of the tries after a download has stalled. Before each further one, it is twice as
/// long.
const PAUSE: Duration = Duration::from_millis(200);

/// The settings of the environment.
pub(super) struct Environment {
    /// `HF_ENDPOINT`.
    pub endpoint: String,
    /// `HF_HUB_CACHE`, or `hub` in `HF_HOME`, or in `~/.cache/huggingface`.
    pub cache: PathBuf,
    /// `HF_TOKEN`, or what `hf auth login` saved.
    pub token: Option<String>,
    /// `HF_HUB_OFFLINE`.
    pub is_offline: bool,
    /// `HF_HUB_DOWNLOAD_TIMEOUT`, in seconds: how long to wait for a connection and for the next bytes.
    pub silence: Duration,
    /// How long to wait before the first of the tries after a download has stalled. No variable sets it.
    pub pause: Duration,
}

impl Environment {
    /// Reads the environment.
    ///
    /// # Errors
    ///
    /// Nothing says where the cache is, or how long to wait is not a number of seconds.
    pub fn read() -> Result<Self, HubError> {
        let given = |name: &str| env::var(name).ok().filter(|value| !value.trim().is_empty());
        let home = given("HF_HOME").map(PathBuf::from);
        let home = home.or_else(|| Some(env::home_dir()?.join(".cache/huggingface")));
        let saved = given("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(home.as_ref()?.join("token")));
        let token = given("HF_TOKEN").or_else(|| fs::read_to_string(saved?).ok());
        let endpoint = given("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.into());
        let offline = given("HF_HUB_OFFLINE").map(|value| value.to_uppercase());
        let cache = given("HF_HUB_CACHE").map(PathBuf::from).or_else(|| Some(home.as_ref()?.join("hub")));
        let silence = given("HF_HUB_DOWNLOAD_TIMEOUT").map_or(Ok(SILENCE), |text| seconds(&text))?;
        Ok(Self {
            endpoint: endpoint.trim_end_matches('/').into(),
            cache: cache.ok_or(HubError::NoCache)?,
            token: token.map(|token| token.trim().to_string()).filter(|token| !token.is_empty()),
            is_offline: offline.is_some_and(|value| ["1", "ON", "YES", "TRUE"].contains(&value.as_str())),
            silence,
            pause: PAUSE,
        })
    }

    /// Returns the folder of a repository in the cache, with its `refs`, `snapshots` and `blobs`.
    pub fn folder(&self, repository: &str, is_data: bool) -> PathBuf {
        let kind = if is_data { "datasets" } else { "models" };
        self.cache.join(format!("{kind}--{}", repository.replace('/', "--")))
    }
}

/// Parses how long to wait, between a second and a day.
fn seconds(text: &str) -> Result<Duration, HubError> {
    let number = text.trim().parse::<f64>().ok().filter(|seconds| (1.0..=86_400.0).contains(seconds));
    number.map(Duration::from_secs_f64).ok_or_else(|| HubError::Silence { found: text.into() })
}

/// Whether a name from the Hub names a file in a folder of the cache, and nothing elsewhere.
pub(super) fn is_plain_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=200).contains(&name.len()) && name.bytes().all(is_allowed) && !name.starts_with('.')
}

/// Keeps the commit of a branch or a tag, which is found so without network. A cache that cannot be written keeps what it
/// has.
pub(super) fn keep_ref(folder: &Path, revision: &str, commit: &str) {
    let path = folder.join("refs").join(revision);
    if fs::read_to_string(&path).is_ok_and(|known| known.trim() == commit) {
        return;
    }
    let _ = fs::create_dir_all(folder.join("refs")).and_then(|()| fs::write(&path, commit));
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
