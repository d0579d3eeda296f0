//! Writes files so that a reader finds them whole: staged and renamed, appended and cut back, retried.

pub(crate) mod appended;
pub(crate) mod beside;
pub mod saving;
pub mod writes;
