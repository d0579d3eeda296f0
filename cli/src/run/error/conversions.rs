//! Conversions of errors of the libraries into those of a run.

use std::io::{self, ErrorKind};

use firebrick_datasets::DataError;
use firebrick_strategies::StrategyError;

use super::RunError;
use firebrick::{FailedWrites, TrainError};

impl From<DataError> for RunError {
    fn from(error: DataError) -> Self {
        Self::Train(error.into())
    }
}

impl From<StrategyError> for RunError {
    fn from(error: StrategyError) -> Self {
        Self::Train(error.into())
    }
}

impl RunError {
    /// Returns the error for output that cannot be written.
    pub(crate) fn output(what: &'static str, error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::BrokenPipe => Self::Unread,
            _ => TrainError::file(what, "writing", error).into(),
        }
    }

    /// Returns the error for a file that is incomplete at the end of a run.
    pub(crate) fn unwritten(file: &FailedWrites) -> Option<Self> {
        let FailedWrites { file, failures, error } = file.clone();
        error.map(|reason| Self::Unwritten { file, failures, reason })
    }
}
