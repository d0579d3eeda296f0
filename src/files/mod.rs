//! Writes files so that a reader finds them whole: staged and renamed, appended and cut back, retried.

pub(crate) mod appended;
pub(crate) mod sorted_metadata;
pub(crate) mod staging;
pub mod writes;
