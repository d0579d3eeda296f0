//! A run's numbers on an MLflow server, through its REST API.
//!
//! ```text
//! mod.rs     the entry of the run file, what of a run is logged, and why it cannot be
//! logger.rs  an observer, and the thread that sends what it sees
//! server.rs  the server's API
//! ```
//!
//! All but the entry is behind the feature `mlflow`, since it links TLS.

#[cfg(feature = "mlflow")]
mod logger;
#[cfg(feature = "mlflow")]
mod server;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use firebrick::Observer;
use firebrick::output::Output;

/// The variable that MLflow's own clients read.
const URI: &str = "MLFLOW_TRACKING_URI";

/// The MLflow server that a run logs its numbers to.
///
/// Training never waits for it: a thread sends the numbers in batches, once a second. If the server does not answer, the
/// numbers wait, a warning says so, and training goes on. The end of a run waits up to 15 seconds for a server that stopped
/// answering or is slow, and up to 20 more for requests under way. A resumed run goes on in the run of the server that it began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MlflowConfig {
    /// The address of the server, as in `"http://127.0.0.1:5000"`, not a folder or a database. Default:
    /// `MLFLOW_TRACKING_URI` of the environment. `MLFLOW_TRACKING_TOKEN`, or `MLFLOW_TRACKING_USERNAME` and
    /// `MLFLOW_TRACKING_PASSWORD`, log in.
    pub uri: Option<String>,
    /// The experiment, which is created if it does not exist. Default: `Default`.
    pub experiment: Option<String>,
    /// The name of the run. Default: the name of the output folder.
    pub run_name: Option<String>,
}

/// A run that starts, as its logger sees it.
#[cfg_attr(not(feature = "mlflow"), allow(dead_code, reason = "read by the logger"))]
pub(crate) struct Started {
    /// The output folder, which keeps the id of the server's run.
    pub output: Arc<Output>,
    /// The settings of the run file, by their paths.
    pub settings: BTreeMap<String, String>,
    /// Whether the run continues in this folder.
    pub goes_on: bool,
}

impl MlflowConfig {
    /// Checks that this program can log to the server.
    ///
    /// # Errors
    ///
    /// There is no address, it is not one of HTTP, or the program was built without the feature `mlflow`.
    pub(crate) fn check(&self) -> Result<(), MlflowError> {
        match self.address() {
            _ if !cfg!(feature = "mlflow") => Err(MlflowError::NotBuilt),
            None => Err(MlflowError::NoServer),
            Some(found) => self.require_http(found),
        }
    }

    /// MLflow's own clients also take folders and databases, which have no REST API.
    fn require_http(&self, found: String) -> Result<(), MlflowError> {
        let scheme = found.to_ascii_lowercase();
        match scheme.starts_with("http://") || scheme.starts_with("https://") {
            true => Ok(()),
            false => {
                let setting = if self.uri.is_some() { "`mlflow.uri`" } else { URI };
                Err(MlflowError::Address { setting, found })
            }
        }
    }

    fn address(&self) -> Option<String> {
        let address = self.uri.clone().or_else(|| std::env::var(URI).ok());
        address.map(|address| address.trim().trim_end_matches('/').to_string()).filter(|uri| !uri.is_empty())
    }

    /// Returns the observer that logs a run. It is connected in the background.
    ///
    /// # Errors
    ///
    /// Those of [`check`](Self::check).
    #[cfg(feature = "mlflow")]
    pub(crate) fn logger(&self, started: Started) -> Result<impl Observer + 'static, MlflowError> {
        self.check()?;
        let address = self.address().ok_or(MlflowError::NoServer)?;
        let folder = started.output.folder().file_name().map(|name| name.to_string_lossy().into_owned());
        let name = self.run_name.clone().or(folder).unwrap_or_else(|| "firebrick".into());
        let experiment = self.experiment.clone().unwrap_or_else(|| "Default".into());
        Ok(logger::Logger::start(server::Server::new(address), experiment, name, started))
    }

    #[cfg(not(feature = "mlflow"))]
    pub(crate) fn logger(&self, _: Started) -> Result<Unbuilt, MlflowError> {
        Err(MlflowError::NotBuilt)
    }
}

/// The logger of a program without the feature, which is never made.
#[cfg(not(feature = "mlflow"))]
pub(crate) struct Unbuilt;

#[cfg(not(feature = "mlflow"))]
impl Observer for Unbuilt {}

/// A server that a run cannot log to.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum MlflowError {
    /// This program cannot log to MLflow.
    #[error(
        "the run file names an MLflow server, and this program was built without: build it with `--features mlflow`, or leave it out with `--set mlflow=None`; the run's files for TensorBoard have the same numbers"
    )]
    NotBuilt,
    /// The run names no server.
    #[error(
        "`mlflow` has no `uri`, and MLFLOW_TRACKING_URI is not set: name the server, as in \"http://127.0.0.1:5000\""
    )]
    NoServer,
    /// The run names something else than the address of a server.
    #[error(
        "{setting} is `{found}`: expected the address of a server, which begins with http:// or https://; start one with `mlflow server`, and name it, as in \"http://127.0.0.1:5000\""
    )]
    Address {
        /// `mlflow.uri`, or the variable of the environment.
        setting: &'static str,
        /// Its value.
        found: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_named_or_refused() {
        let named = MlflowConfig { uri: Some("http://localhost:5000/".into()), ..MlflowConfig::default() };
        assert_eq!(named.address().as_deref(), Some("http://localhost:5000"));
        let found = named.check();
        match cfg!(feature = "mlflow") {
            true => found.unwrap(),
            false => assert!(found.unwrap_err().to_string().contains("--features mlflow")),
        }
    }

    #[test]
    fn a_folder_or_a_database_is_not_a_server() {
        let config = MlflowConfig::default();
        for wrong in ["./mlruns", "databricks", "sqlite:///mlflow.db", "127.0.0.1:5000"] {
            let error = config.require_http(wrong.into()).unwrap_err().to_string();
            assert!(error.contains(&format!("MLFLOW_TRACKING_URI is `{wrong}`")), "{error}");
            assert!(error.contains("`mlflow server`"), "{error}");
        }
        config.require_http("https://mlflow.example.org".into()).unwrap();
    }
}
