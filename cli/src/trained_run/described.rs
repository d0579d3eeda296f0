//! The predictions and the report page of a trained run.

use super::TrainedRun;
use crate::report_page;
use crate::{Launched, Run, RunError};
use firebrick::saving;
use firebrick_models::decoding::Decoding;
use firebrick_tasks::Writing;

/// The number of records whose predictions the page shows.
const SHOWN: usize = 50;

impl Run {
    /// Writes `predictions.jsonl`, the predictions for the first records of the validation files, and `report.html`,
    /// a page about the run.
    ///
    /// # Errors
    ///
    /// [`RunError::Undescribed`] with the files that cannot be written. The run itself is already saved.
    pub(crate) fn describe(&self, launched: &Launched) -> Result<(), RunError> {
        let mut failed = Vec::new();
        // Do not make the user wait after a run that was ended early, or whose sample was.
        let was_ended =
            launched.report.stopped.is_some() || matches!(launched.failed, Some(RunError::NoSample(_)));
        if !was_ended && let Err(error) = self.write_predictions() {
            failed.push(format!("no predictions: {error}"));
        }
        if let Err(error) = report_page::write(&self.output, &versions()) {
            failed.push(format!("no report page: {error}"));
        }
        match failed.is_empty() {
            true => Ok(()),
            false => Err(RunError::Undescribed(failed.join("; "))),
        }
    }

    fn write_predictions(&self) -> Result<(), RunError> {
        if self.task.writing() == Some(Writing::Continuation) || self.data.valid.is_none() {
            return Ok(());
        }
        let trained =
            TrainedRun::open_with(&self.registries.0, &self.output, None, &[""; 0])?.on(&self.device);
        let decoding = Decoding { max_new_tokens: 64, ..Decoding::default() };
        let mut lines = Vec::new();
        trained.predict(None, Some(SHOWN), &decoding, &mut lines, |_| {})?;
        Ok(saving::save_text(&String::from_utf8_lossy(&lines), &self.output.join("predictions.jsonl"))?)
    }
}

/// The versions of the software of the run.
pub(crate) fn versions() -> Vec<(String, String)> {
    let versions = [("firebrick", env!("CARGO_PKG_VERSION")), ("system", std::env::consts::OS)];
    versions.map(|(name, version)| (name.into(), version.into())).into()
}
