//! Why a run cannot be logged to MLflow.

use thiserror::Error;

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
