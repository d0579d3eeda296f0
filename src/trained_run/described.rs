//! What is left beside a trained run for those who look at it.

use std::fs;
use std::path::PathBuf;

use super::TrainedRun;
use crate::decoding::Decoding;
use crate::report_page;
use crate::run::TaskConfig;
use crate::{Launched, Run, RunError, TrainError, saving};

/// Records whose answers stand on the page.
const SHOWN: usize = 50;

impl Run {
    /// Writes `predictions.jsonl`, the answers to the first records of the validation files, and `report.html`, the run
    /// on one page.
    ///
    /// # Errors
    ///
    /// [`RunError::Undescribed`]: what of it cannot be written. The run itself is saved already.
    pub(crate) fn describe(&self, launched: &Launched) -> Result<(), RunError> {
        let mut failed = Vec::new();
        // A run that was ended early is not to be waited for.
        if launched.report.stopped.is_none()
            && let Err(error) = self.write_predictions()
        {
            failed.push(format!("no predictions: {error}"));
        }
        if let Err(error) = report_page::write(&self.output, &versions()) {
            failed.push(format!("no report page: {error}"));
        }
        match failed.is_empty() {
            true => Ok(()),
            false => Err(RunError::Undescribed { reason: failed.join("; ") }),
        }
    }

    fn write_predictions(&self) -> Result<(), RunError> {
        if matches!(self.task, TaskConfig::CausalLm { .. }) || self.data.valid.is_none() {
            return Ok(());
        }
        let trained = TrainedRun::open(&self.output, None, &[""; 0])?.on(&self.device);
        let decoding = Decoding { max_new_tokens: 64, ..Decoding::default() };
        let mut lines = Vec::new();
        trained.predict(None, Some(SHOWN), &decoding, &mut lines, |_| {})?;
        let path: PathBuf = self.output.join("predictions.jsonl");
        Ok(saving::replace(&path, |staged| {
            fs::write(staged, &lines).map_err(|error| TrainError::file(&path, "writing", error))
        })?)
    }
}

/// What made the run.
pub(crate) fn versions() -> Vec<(String, String)> {
    let versions = [("firebrick", env!("CARGO_PKG_VERSION")), ("system", std::env::consts::OS)];
    versions.map(|(name, version)| (name.into(), version.into())).into()
}
