//! Handles malformed records.

use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use super::Records;
use crate::DataError;

/// The number of error messages that are kept.
const MESSAGES: usize = 5;

/// What to do about an error that is [about one record](DataError::is_about_a_record).
///
/// Any other error always stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Malformed {
    /// Stop at the error, the default: other records may have the same fault.
    #[default]
    Stop,
    /// Skip the record and count it.
    Skip,
}

/// Counts skipped records and keeps the first few error messages. It also counts records that are in order, but of which
/// nothing is left to learn: they are empty, or what counts is cut off.
///
/// Clones share the count, so you can keep one and read it at the end.
///
/// # Example
///
#[cfg_attr(feature = "text", doc = "```")]
#[cfg_attr(not(feature = "text"), doc = "```ignore")]
/// use firebrick_datasets::{JsonlReader, Malformed, Reader, Skipped};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("a.jsonl");
/// std::fs::write(&path, "{\"text\": \"one\"}\n{\n{\"txt\": \"two\"}\n")?;
///
/// let skipped = Skipped::default();
/// let records = Malformed::Skip.apply(JsonlReader::new(path).open(0)?, &skipped);
/// let mut texts = Vec::new();
/// for record in records {
///     // The same rule can apply to steps after reading.
///     let text = record?.text("text").map(str::to_owned);
///     texts.extend(Malformed::Skip.keep(text, &skipped)?);
/// }
/// assert_eq!(texts, ["one"]);
/// assert_eq!(skipped.count(), 2);
/// assert!(skipped.messages()[1].contains("a.jsonl:3, field `text`"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Skipped {
    state: Arc<Mutex<SkipCounts>>,
}

#[derive(Debug, Default)]
struct SkipCounts {
    count: u64,
    messages: Vec<String>,
    left_out: u64,
}

impl Malformed {
    /// Handles one result: `Some` is kept, `None` was skipped and counted.
    ///
    /// # Errors
    ///
    /// The error, unless it is skipped.
    pub fn keep<T>(self, result: Result<T, DataError>, skipped: &Skipped) -> Result<Option<T>, DataError> {
        match result {
            Ok(kept) => Ok(Some(kept)),
            Err(error) if self == Self::Skip && error.is_about_a_record() => {
                skipped.add(&error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Handles each of these records. Nothing follows an error.
    pub fn apply(self, records: Records, skipped: &Skipped) -> Records {
        let skipped = skipped.clone();
        let mut records = Some(records);
        Box::new(std::iter::from_fn(move || {
            loop {
                match self.keep(records.as_mut()?.next()?, &skipped) {
                    Ok(Some(record)) => return Some(Ok(record)),
                    Ok(None) => {}
                    Err(error) => {
                        records = None;
                        return Some(Err(error));
                    }
                }
            }
        }))
    }
}

impl Skipped {
    /// Returns the number of skipped records.
    pub fn count(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).count
    }

    /// Returns the messages of the first five errors, in order.
    pub fn messages(&self) -> Vec<String> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).messages.clone()
    }

    /// Returns the number of records that yielded no sample.
    pub fn left_out(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).left_out
    }

    /// Adds records that yielded no sample.
    pub fn leave_out(&self, records: u64) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).left_out += records;
    }

    /// Adds records that were skipped elsewhere: their number, and the messages of the first ones.
    pub fn extend(&self, count: u64, messages: impl IntoIterator<Item = String>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.count += count;
        let room = MESSAGES - state.messages.len();
        state.messages.extend(messages.into_iter().take(room));
    }

    fn add(&self, error: &DataError) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.count += 1;
        if state.messages.len() < MESSAGES {
            state.messages.push(error.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{ReadError, Record, RecordPlace};

    fn record() -> Record {
        Record::new(RecordPlace { file: Path::new("x").into(), line: 1 }, Vec::new())
    }

    fn items(count: usize) -> Records {
        let item = |index| if index % 2 == 0 { Ok(record()) } else { Err(record().expected("a", "b")) };
        Box::new((0..count).map(item))
    }

    #[test]
    fn stopping() {
        let skipped = Skipped::default();
        let read: Vec<_> = Malformed::Stop.apply(items(9), &skipped).map(|item| item.is_ok()).collect();
        assert_eq!(read, [true, false]);
        assert_eq!(skipped.count(), 0);
    }

    #[test]
    fn skipping() {
        let skipped = Skipped::default();
        let read: Vec<_> = Malformed::Skip.apply(items(21), &skipped).map(|item| item.is_ok()).collect();
        assert_eq!(read, [true; 11]);
        assert_eq!(skipped.count(), 10);
        assert_eq!(skipped.messages().len(), MESSAGES);
    }

    #[test]
    fn other_errors_always_stop() {
        let skipped = Skipped::default();
        let error = || Err(DataError::Read(ReadError::NoPart { part: 1, parts: 1 }));
        let records: Records = Box::new([error(), Ok(record())].into_iter());
        assert_eq!(Malformed::Skip.apply(records, &skipped).count(), 1);
        assert_eq!(skipped.count(), 0);
    }
}
