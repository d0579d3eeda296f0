//! The Hub's cache on this machine, and the settings of the environment, as Hugging Face's own tools have them.

use std::env;
use std::fs;
use std::path::PathBuf;

use hf_hub::Cache;

/// The address of the Hub, unless `HF_ENDPOINT` names another.
const ENDPOINT: &str = "https://huggingface.co";

/// The settings of the environment.
pub(super) struct Environment {
    /// `HF_ENDPOINT`.
    pub endpoint: String,
    /// `HF_HUB_CACHE`, or `hub` in `HF_HOME`, or in `~/.cache/huggingface`.
    pub cache: Cache,
    /// `HF_TOKEN`, or what `hf auth login` saved.
    pub token: Option<String>,
    /// `HF_HUB_OFFLINE`.
    pub is_offline: bool,
}

impl Environment {
    pub fn read() -> Self {
        let given = |name: &str| env::var(name).ok().filter(|value| !value.trim().is_empty());
        let home = Cache::from_env();
        let saved = given("HF_TOKEN_PATH").map_or(home.token_path(), PathBuf::from);
        let token = given("HF_TOKEN").or_else(|| fs::read_to_string(saved).ok());
        let endpoint = given("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.into());
        let offline = given("HF_HUB_OFFLINE").map(|value| value.to_uppercase());
        Self {
            endpoint: endpoint.trim_end_matches('/').into(),
            cache: given("HF_HUB_CACHE").map_or(home, |path| Cache::new(path.into())),
            token: token.map(|token| token.trim().to_string()).filter(|token| !token.is_empty()),
            is_offline: offline.is_some_and(|value| ["1", "ON", "YES", "TRUE"].contains(&value.as_str())),
        }
    }
}
