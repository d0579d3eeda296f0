//! Tries what is suggested, before it is written.

use std::fs;
use std::path::PathBuf;

use crate::{DataRun, Run, RunError};

/// The most bytes of data that are tried, which takes a moment. What is suggested for more follows from its first records
/// in the same way.
const MOST: u64 = 1 << 20;

/// Reads the data of a drafted run as training does, up to the first batch: its tokenizer, its labels, and samples that
/// have something to learn.
///
/// # Errors
///
/// Those of training.
pub(super) fn of(run: &Run, bytes: u64) -> Result<(), RunError> {
    if bytes > MOST {
        return Ok(());
    }
    let mut data = DataRun::from(run);
    data.data.cache = false;
    // Validation data is read whole, too.
    let size = |path: &PathBuf| fs::metadata(path).map_or(0, |file| file.len());
    if let Some(valid) = &data.data.valid
        && valid.as_slice().iter().map(size).sum::<u64>() > MOST
    {
        data.data.valid = None;
    }
    let loaded = data.load(|_| ())?;
    data.preview(&loaded, 1, 1)?;
    Ok(())
}
